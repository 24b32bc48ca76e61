"""Text that is drawn on demand, with the fonts at hand: as many samples as wanted, new ones in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phalanx.config.options import check_probability
from phalanx.data.folders import lines_of
from phalanx.data.listed import Packed
from phalanx.data.samples import Draw, Drawn, Rng, Split
from phalanx.families.recognition.characters import BuiltIn, read_dictionary
from phalanx.families.recognition.data.source import TextImage
from phalanx.synthetic.lines import Fonts, render

PICTURES = {'.jpg', '.jpeg', '.png', '.bmp', '.webp'}


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Pictures of words from the file `words`, one a line, and of random characters.

    Random texts have as many characters as `lengths` says, the fewest and the most, of `dictionary` (a built-in one or a file);
    they are all when there are no words, else the share `random_share`. With `change_case` words also come with a capital, and
    in capitals. `fonts` and `pictures` are folders, of font files (none: the system's, which must then be the same on all
    nodes) and of images for backgrounds. What no font can write is left out of the dictionary and the words.
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
            raise ValueError(f'lengths is the fewest and the most characters, got {self.lengths[0]}, {self.lengths[1]}')
        check_probability('random_share', self.random_share)

    def split(self, split: Split) -> RenderedLines:
        words = [line.strip() for _, line in lines_of(self.words)] if self.words else []
        texts = {text for word in words for text in (cases(word) if self.change_case else (word,))}
        alphabet = read_dictionary(self.dictionary)
        fonts = Fonts(self.fonts, sorted({*alphabet, *(character for text in texts for character in text)}))
        written = [word for word in words if fonts.writing(word)]
        if words and not written:
            raise ValueError(f'{self.words}: no font can write any of its words')
        pictures = sorted(path for path in self.pictures.rglob('*') if path.suffix in PICTURES) if self.pictures else []
        if self.pictures and not pictures:
            raise FileNotFoundError(f'{self.pictures}: holds no pictures')
        strings = RandomStrings(fonts, alphabet, self.lengths)
        listed = ListedWords(fonts, written, change_case=self.change_case)
        number = self.train_lines if split == 'train' else self.eval_lines
        return RenderedLines(split, number, strings, listed, self.random_share if words else 1.0, pictures)


class RandomStrings:
    """Random characters of an alphabet, and a font that has them; fonts that have more of the alphabet come more often."""

    def __init__(self, fonts: Fonts, alphabet: Sequence[str], lengths: tuple[int, int]) -> None:
        """Raises ValueError when no font can write any of `alphabet`."""
        writable = [(path, ''.join(filter(covered.__contains__, alphabet))) for path, covered in fonts.covered.items()]
        self.writable = [(path, characters) for path, characters in writable if characters.strip()]
        if not self.writable:
            raise ValueError('no font can write any character of the dictionary')
        self.lengths = lengths
        self._bounds = np.cumsum([len(characters) for _, characters in self.writable])

    def pick(self, rng: Rng) -> tuple[str, Path]:
        font, characters = self.writable[np.searchsorted(self._bounds, rng.integers(self._bounds[-1]), side='right')]
        count = int(rng.integers(*self.lengths, endpoint=True))
        text = ''.join(characters[place] for place in rng.integers(len(characters), size=count)).strip()
        return text or characters.strip()[0], font  # blanks at the ends cannot be seen


class ListedWords:
    """Words of a list, each with a font that has its characters."""

    def __init__(self, fonts: Fonts, words: Sequence[str], *, change_case: bool) -> None:
        self.fonts, self.words, self.change_case = fonts, Packed(words), change_case

    def pick(self, rng: Rng) -> tuple[str, Path]:
        word = self.words[int(rng.integers(len(self.words)))]
        text = cases(word)[rng.integers(3)] if self.change_case else word
        fonts = self.fonts.writing(text)
        if not fonts:  # they have the word, but not in capitals
            text, fonts = word, self.fonts.writing(word)
        return text, fonts[rng.integers(len(fonts))]


def cases(word: str) -> tuple[str, str, str]:
    return word, word.capitalize(), word.upper()


@dataclass(frozen=True)
class RenderedLines(Drawn):
    """A Source: sample `index` of an epoch is a function of (seed, epoch, index)."""

    kind = 'rendered line'

    strings: RandomStrings
    words: ListedWords
    random_share: float
    pictures: Sequence[Path]

    def read(self, draw: Draw) -> TextImage:
        own = self.split == 'eval'  # else they would be the samples of the first training epoch
        rng = np.random.default_rng((draw.seed, 4, draw.index)) if own else draw.source_rng()
        text, font = (self.strings if rng.random() < self.random_share else self.words).pick(rng)
        return render(text, font, rng, self.pictures), text
