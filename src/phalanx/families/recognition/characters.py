"""The characters that a network distinguishes, and texts as their numbers. Shapes: B texts, T time steps, C characters.

Numbering, what is dropped and what is refused are PaddleOCR's: in CTC targets number 0 is the blank and character i of the
dictionary is i + 1; in targets of the attention decoder SAR character i is i, followed by a number for unknown characters, one
for begin and end alike, and one for padding; in those of NRTR these come first (padding, unknown, begin, end), and character i
is i + 4.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from phalanx.data.folders import text_of
from phalanx.runtime.recognition import collapsed
from phalanx.runtime.results import Reading

# The first four are in SHORT_DICTIONARIES; the others are those of PaddleOCR's published recognisers, named like its files.
# fmt: off
BuiltIn = Literal[
    'digits', 'alphanumeric', 'letters', 'en',
    'ppocr_keys_v1', 'ppocrv4_doc_dict', 'ppocrv5_dict', 'ppocrv6_dict', 'chinese_cht_dict', 'japan_dict', 'korean_dict',
    'latin_dict', 'cyrillic_dict', 'arabic_dict', 'devanagari_dict', 'ka_dict', 'ta_dict', 'te_dict', 'EN_symbol_dict',
    'spin_dict', 'dict90',
]
# fmt: on
PUBLISHED = Path(__file__).parent / 'dictionaries'
SHORT_DICTIONARIES = {
    'digits': string.digits,
    'alphanumeric': string.digits + string.ascii_lowercase,
    'letters': string.digits + string.ascii_letters,
    'en': ''.join(map(chr, range(ord('0'), ord('~') + 1))) + ''.join(map(chr, range(ord('!'), ord('0')))) + ' ',
}


def row_labels(characters: Sequence[str]) -> list[Sequence[str]]:
    """What the rows of a head stand for: of CTC, of SAR, of the characters that go into that, of NRTR and its characters."""
    attended = [*characters, '(unknown)', '(begin or end)']
    nrtr = ['(padding)', '(unknown)', '(begin)', '(end)', *characters, '(none)']
    return [['(blank)', *characters], attended, [*attended, '(padding)'], nrtr]


class UnusableTextError(Exception):
    """A text that cannot be a training target. The message says why."""


@dataclass(frozen=True, kw_only=True)
class Dictionary:
    """Which characters there are, as a recipe says it."""

    dictionary: BuiltIn | tuple[str, ...] | Path = 'alphanumeric'
    """A built-in one (from `ppocr_keys_v1` on PaddleOCR's, by their names), a list of characters, a file with one character a
    line, or an ONNX file of a recogniser, which has them in its metadata, as rapidocr's do."""
    space: bool = False
    """Adds a space at the end, also where the file has one already: as the originals do, so that their weights fit."""
    lower_case: bool | None = None
    """Whether texts are turned to lower case first; none: where the dictionary is `alphanumeric`."""
    max_length: int = 25
    """The longest text, in characters, that can be a target."""

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f'max_length must be at least 1, got {self.max_length}')

    def read(self) -> Characters:
        """Raises FileNotFoundError or ValueError when the file is missing or is none."""
        characters = read_dictionary(self.dictionary) + ((' ',) if self.space else ())
        lower_case = self.dictionary == 'alphanumeric' if self.lower_case is None else self.lower_case
        return Characters(characters, lower_case=lower_case, max_length=self.max_length)


def read_dictionary(dictionary: BuiltIn | tuple[str, ...] | Path) -> tuple[str, ...]:
    """The characters of a dictionary, in order. Raises FileNotFoundError or ValueError."""
    if isinstance(dictionary, tuple):
        return dictionary
    if not isinstance(dictionary, Path):
        short = SHORT_DICTIONARIES.get(dictionary)
        return tuple(short) if short else read_dictionary(PUBLISHED / f'{dictionary}.txt')
    if not dictionary.is_file():
        known = ', '.join(get_args(BuiltIn))
        raise FileNotFoundError(f'{dictionary}: there is no such dictionary file; built-in ones are {known}')
    text = _metadata(dictionary) if dictionary.suffix == '.onnx' else text_of(dictionary)
    lines = [line.removesuffix('\r') for line in text.removesuffix('\n').split('\n')]
    for number, line in enumerate(lines, 1):
        if not line:
            raise ValueError(f'{dictionary}:{number}: is empty; a dictionary has one character a line')
    return tuple(lines)


def _metadata(file: Path) -> str:
    """The characters that an exported recogniser knows, one a line. Raises ValueError when there are none."""
    if find_spec('onnx') is None:
        raise ValueError(
            f'{file}: the characters of an exported network are read with onnx: pip install "phalanx-vision[export]"'
        )
    import onnx  # it comes with the extra `export`
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        metadata = {each.key: each.value for each in onnx.load_model(file, load_external_data=False).metadata_props}
    except (DecodeError, ValueError) as error:
        raise ValueError(f'{file}: is not a complete ONNX file: {error}') from None
    if not metadata.get('character'):
        raise ValueError(f'{file}: has no `character` in its metadata; give the dictionary that it was made with')
    return str(metadata['character'])


class Encoded(NamedTuple):
    """What becomes of a text."""

    known: str
    unknown: int
    ctc: list[int]


class Characters:
    """Texts to numbers and back."""

    def __init__(self, characters: Sequence[str], *, lower_case: bool, max_length: int) -> None:
        self.characters, self.lower_case, self.max_length = tuple(characters), lower_case, max_length
        self._numbers = {character: number for number, character in enumerate(self.characters)}  # of two equal ones the last

    def __len__(self) -> int:
        return len(self.characters)

    def known(self, text: str) -> str:
        """What is left of a text: in lower case where the dictionary wants it, without characters that it has not."""
        return ''.join(filter(self._numbers.__contains__, self._cased(text)))

    def unknown(self, text: str) -> str:
        """The characters of a text that the dictionary has not."""
        return ''.join(character for character in self._cased(text) if character not in self._numbers)

    def ctc(self, text: str) -> list[int]:
        """The target [L] of the CTC loss. Raises UnusableTextError when the text is empty or too long, or nothing is left."""
        return self.encoded(text).ctc

    def encoded(self, text: str) -> Encoded:
        """All of these at once. Raises UnusableTextError where `ctc` does."""
        if len(text) > self.max_length:
            raise UnusableTextError(f'{text!r} has {len(text)} characters, at most {self.max_length} can be learned')
        compared = self.compared(text)
        return compared._replace(ctc=[self._numbers[character] + 1 for character in compared.known])

    def compared(self, text: str) -> Encoded:
        """What a reading is compared with, of a text of any length. Raises UnusableTextError when nothing is left."""
        known = self.known(text)
        if not known:
            raise UnusableTextError(f'{text!r} has no character of the dictionary' if text else 'the text is empty')
        return Encoded(known, len(self._cased(text)) - len(known), [])

    def sar(self, text: str) -> list[int]:
        """The target [max_length] of the attention decoder SAR: begin, characters, end, padding.

        Raises UnusableTextError where `ctc` does, and when there is no room for begin and end.
        """
        edge, padding = len(self) + 1, len(self) + 2
        return self._framed(text, edge, -1, edge, padding)

    def nrtr(self, text: str) -> list[int]:
        """As `sar`, of NRTR."""
        return self._framed(text, 2, 3, 3, 0)

    def _framed(self, text: str, begin: int, shift: int, end: int, padding: int) -> list[int]:
        """`shift`: what a character is more than for CTC."""
        numbers = [number + shift for number in self.ctc(text)]
        room = self.max_length - 2
        if len(numbers) > room:
            raise UnusableTextError(f'{text!r} has {len(numbers)} characters, the attention decoder learns at most {room}')
        return [begin, *numbers, end] + [padding] * (room - len(numbers))

    def decode(self, logits: Tensor) -> list[Reading]:  # [B, T, C + 1]
        """The most probable character of each step, repetitions and blanks left out."""
        probabilities, numbers = logits.float().softmax(-1).max(-1)  # [B, T] each
        rows = zip(numbers.tolist(), probabilities.tolist(), strict=True)
        return [collapsed(*row, self.characters) for row in rows]

    def _cased(self, text: str) -> str:
        return text.lower() if self.lower_case else text


def padded(rows: Sequence[Sequence[int]], length: int) -> Tensor:
    """[B, length] int64, each row filled up with 0."""
    filled = np.zeros((len(rows), length), np.int64)
    for place, row in zip(filled, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(filled)
