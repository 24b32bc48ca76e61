"""Data set of text rendered on demand with the available fonts; the samples of each epoch are new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.config.options import check_probability
from phalanx.data.folders import read_lines
from phalanx.data.listed import Packed
from phalanx.data.samples import Draw, GeneratedSource, Rng, Split
from phalanx.families.recognition.characters import BuiltIn, read_dictionary
from phalanx.families.recognition.data.source import TextImage
from phalanx.synthetic.lines import Fonts, render_line

PICTURES = {'.jpg', '.jpeg', '.png', '.bmp', '.webp'}


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Rendered words of the file `words`, one per line, and random strings.

    `lengths`: minimum and maximum length of random strings, with characters of `dictionary` (built-in or a file).
    `random_share`: share of random strings; without `words` all samples are random strings. `change_case`: also render words
    capitalised and in capitals. `fonts`: folder of font files; default: the system's, which must be the same on all nodes.
    `pictures`: folder of images for backgrounds. Characters and words that no font covers are left out.
    """

    train_lines: int = 100_000
    eval_lines: int = 1000
    fonts: Path | None = None
    words: Path | None = None
    dictionary: BuiltIn | Path = 'letters'
    lengths: tuple[int, int] = (1, 10)
    random_share: float = 0.2
    change_case: bool = True
    pictures: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.lengths[0] <= self.lengths[1]:
            raise ValueError(
                f'lengths is the minimum and the maximum length, at least 1; got {self.lengths[0]}, {self.lengths[1]}'
            )
        check_probability('random_share', self.random_share)

    def split(self, split: Split) -> RenderedLines:
        """Read words and fonts. Raises FileNotFoundError for missing files, and ValueError if no font covers any text."""
        words = [line.strip() for _, line in read_lines(self.words)] if self.words else []
        texts = {text for word in words for text in (spell_in_cases(word) if self.change_case else (word,))}
        alphabet = read_dictionary(self.dictionary)
        # Look up in each font only the characters that can occur.
        fonts = Fonts(self.fonts, sorted({*alphabet, *(character for text in texts for character in text)}))
        covered = [word for word in words if fonts.writing(word)]
        if words and not covered:
            raise ValueError(f'{self.words}: no font covers any of its words')
        pictures = sorted(path for path in self.pictures.rglob('*') if path.suffix in PICTURES) if self.pictures else []
        if self.pictures and not pictures:
            raise FileNotFoundError(f'{self.pictures}: contains no pictures')
        strings = RandomStrings(fonts, alphabet, self.lengths)
        listed = ListedWords(fonts, covered, change_case=self.change_case)
        number = self.train_lines if split == 'train' else self.eval_lines
        return RenderedLines(split, number, strings, listed, self.random_share if words else 1.0, pictures)


class RandomStrings:
    """Generator of random strings of an alphabet, each with a font that covers it; fonts are weighted by their coverage."""

    def __init__(self, fonts: Fonts, alphabet: Sequence[str], lengths: tuple[int, int]) -> None:
        """Find the characters of each font. Raises ValueError if no font covers any of `alphabet`."""
        # Fonts with more characters are drawn more often, so that each character occurs about equally often.
        writable = [(path, ''.join(filter(covered.__contains__, alphabet))) for path, covered in fonts.covered.items()]
        self.writable = [(path, characters) for path, characters in writable if characters.strip()]
        if not self.writable:
            raise ValueError('no font covers any character of the dictionary')
        self.lengths = lengths
        self._bounds = np.cumsum([len(characters) for _, characters in self.writable])

    def pick(self, rng: Rng) -> tuple[str, Path]:
        """Return a string and the file of a font that covers it."""
        font, characters = self.writable[np.searchsorted(self._bounds, rng.integers(self._bounds[-1]), side='right')]
        count = int(rng.integers(*self.lengths, endpoint=True))
        text = ''.join(characters[index] for index in rng.integers(len(characters), size=count)).strip()
        return text or characters.strip()[0], font  # spaces at the ends are invisible


class ListedWords:
    """Generator of words of a list, each with a font that covers it."""

    def __init__(self, fonts: Fonts, words: Sequence[str], *, change_case: bool) -> None:
        self.fonts, self.words, self.change_case = fonts, Packed.of(words), change_case

    def pick(self, rng: Rng) -> tuple[str, Path]:
        """Return a word and the file of a font that covers it."""
        word = self.words[int(rng.integers(len(self.words)))]
        text = spell_in_cases(word)[rng.integers(3)] if self.change_case else word
        fonts = self.fonts.writing(text)
        if not fonts:  # the fonts cover the word, but not in this case
            text, fonts = word, self.fonts.writing(word)
        return text, fonts[rng.integers(len(fonts))]


def spell_in_cases(word: str) -> tuple[str, str, str]:
    """Return a word as it is, capitalised, and in capitals."""
    return word, word.capitalize(), word.upper()


@dataclass(frozen=True)
class RenderedLines(GeneratedSource):
    """Source of rendered lines: functions of (seed, epoch, index) in training and of (seed, index) in evaluation."""

    kind = 'rendered line'

    strings: RandomStrings
    words: ListedWords
    random_share: float
    pictures: Sequence[Path]

    def read(self, draw: Draw) -> TextImage:
        """Return a line and its text."""
        # Evaluation has a generator of its own: with that of training it would show the samples of the first epoch.
        rng = np.random.default_rng((draw.seed, 4, draw.index)) if self.split == 'eval' else draw.source_rng()
        text, font = (self.strings if rng.random() < self.random_share else self.words).pick(rng)
        return render_line(text, font, rng, self.pictures), text
