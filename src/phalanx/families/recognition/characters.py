"""Dictionaries, and texts encoded as class indices and decoded again. Shapes: B texts, T time steps, C characters.

Indices, dropped characters and rejected texts are those of PaddleOCR. For character i of the dictionary:

- CTC: index i + 1; 0 is the blank.
- SAR (attention decoder): index i; C is the unknown character, C + 1 begin and end alike, C + 2 padding.
- NRTR (transformer decoder): index i + 4; 0 is padding, 1 the unknown character, 2 begin, 3 end.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from phalanx.data.checks import shorten
from phalanx.data.folders import read_text
from phalanx.runtime.recognition import collapse_ctc, reverse_runs
from phalanx.runtime.results import Reading

# The first four are in SHORT_DICTIONARIES; the others are those of PaddleOCR's published recognisers, named like its files.
# fmt: off
BuiltIn = Literal[
    'digits', 'alphanumeric', 'letters', 'en',
    'ppocr_keys_v1', 'ppocrv4_doc_dict', 'ppocrv5_dict', 'ppocrv6_dict', 'ppocrv6_tiny_dict', 'chinese_cht_dict', 'japan_dict',
    'korean_dict',
    'latin_dict', 'cyrillic_dict', 'arabic_dict', 'devanagari_dict', 'ka_dict', 'ta_dict', 'te_dict', 'EN_symbol_dict',
    'spin_dict', 'dict90',
    'french_dict', 'german_dict', 'it_dict', 'ru_dict', 'uk_dict', 'be_dict', 'bg_dict', 'hi_dict', 'mr_dict', 'ne_dict',
    'fa_dict', 'ug_dict', 'ur_dict', 'ar_dict', 'rs_dict', 'rsc_dict', 'oc_dict', 'pu_dict', 'xi_dict',
]
# fmt: on
DICTIONARY_FOLDER = Path(__file__).parent / 'dictionaries'
SHORT_DICTIONARIES = {
    'digits': string.digits,
    'alphanumeric': string.digits + string.ascii_lowercase,
    'letters': string.digits + string.ascii_letters,
    'en': ''.join(map(chr, range(ord('0'), ord('~') + 1))) + ''.join(map(chr, range(ord('!'), ord('0')))) + ' ',
}


def row_labels(characters: Sequence[str]) -> list[Sequence[str]]:
    """Meaning of the rows of each head: the classes of CTC and SAR, the embedded characters of SAR, and those of NRTR."""
    attended = [*characters, '(unknown)', '(begin or end)']
    nrtr = ['(padding)', '(unknown)', '(begin)', '(end)', *characters, '(none)']
    return [['(blank)', *characters], attended, [*attended, '(padding)'], nrtr]


class UnusableTextError(Exception):
    """Error for a text that cannot be a training target; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Dictionary:
    """Dictionary of a recipe and its rules for texts."""

    dictionary: BuiltIn | tuple[str, ...] | Path = 'alphanumeric'
    """Built-in dictionary (from `ppocr_keys_v1` on PaddleOCR's, by their names), list of characters, file with one character
    per line, or ONNX file of a recogniser that stores its characters in its metadata, as rapidocr's do."""
    space: bool = False
    """Append a space even if the file has one already, as the originals do; their weights need it."""
    lower_case: bool | None = None
    """Convert texts to lower case first; null: only if the dictionary is `alphanumeric`."""
    right_to_left: bool | None = None
    """Labels are in the order of the image, from the left, as PaddleOCR's Arabic ones; results are compared and returned in the
    order of reading; null: only if the dictionary is `arabic_dict`."""
    max_length: int = 25
    """Maximum length of a training target, in characters."""

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f'max_length must be at least 1, got {self.max_length}')

    def read(self) -> Characters:
        """Read the dictionary. Raises FileNotFoundError for a missing file and ValueError for an invalid one."""
        characters = read_dictionary(self.dictionary) + ((' ',) if self.space else ())
        lower_case = self.dictionary == 'alphanumeric' if self.lower_case is None else self.lower_case
        right_to_left = self.dictionary == 'arabic_dict' if self.right_to_left is None else self.right_to_left
        return Characters(characters, lower_case=lower_case, right_to_left=right_to_left, max_length=self.max_length)


def read_dictionary(dictionary: BuiltIn | tuple[str, ...] | Path) -> tuple[str, ...]:
    """Return the characters of a dictionary in order.

    Raises FileNotFoundError for a missing file and ValueError for an invalid one.
    """
    if isinstance(dictionary, tuple):
        return dictionary
    if not isinstance(dictionary, Path):
        short = SHORT_DICTIONARIES.get(dictionary)
        return tuple(short) if short else read_dictionary(DICTIONARY_FOLDER / f'{dictionary}.txt')
    if not dictionary.is_file():
        built_in = ', '.join(get_args(BuiltIn))
        raise FileNotFoundError(f'{dictionary}: no such dictionary file; built-in dictionaries are {built_in}')
    text = _characters_in_onnx(dictionary) if dictionary.suffix == '.onnx' else read_text(dictionary)
    # Only line ends are removed: a space is a character.
    lines = [line.removesuffix('\r') for line in text.removesuffix('\n').split('\n')]
    for number, line in enumerate(lines, 1):
        if not line:
            raise ValueError(f'{dictionary}:{number}: is empty; a dictionary has one character per line')
    return tuple(lines)


def _characters_in_onnx(file: Path) -> str:
    """Return the characters in the metadata of an exported recogniser, one per line. Raises ValueError if it has none."""
    if find_spec('onnx') is None:
        raise ValueError(
            f'{file}: onnx is needed to read the characters of an exported network: pip install "phalanx-vision[export]"'
        )
    import onnx  # from the extra `export`
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        metadata = {each.key: each.value for each in onnx.load_model(file, load_external_data=False).metadata_props}
    except (DecodeError, ValueError) as error:
        raise ValueError(f'{file}: is not a complete ONNX file: {error}') from None
    if not metadata.get('character'):
        raise ValueError(f'{file}: has no `character` in its metadata; give the dictionary that it was exported with')
    return str(metadata['character'])


class EncodedText(NamedTuple):
    """Encoded text."""

    label: str  # the text without unknown characters, in the order of reading, the reference of the metric
    unknown: int  # number of characters that are not in the dictionary
    ctc: list[int]  # target of the CTC loss


class Characters:
    """Encoder and decoder of texts for one dictionary.

    Texts are taken in Unicode's normal form NFC, in which a letter and its accent are one character, as far as the
    dictionary has these characters.
    """

    def __init__(self, characters: Sequence[str], *, lower_case: bool, max_length: int, right_to_left: bool = False) -> None:
        self.characters, self.lower_case, self.max_length = tuple(characters), lower_case, max_length
        self.right_to_left = right_to_left
        # The last one wins if a character is listed twice.
        self._numbers = {character: number for number, character in enumerate(self.characters)}
        for number, character in enumerate(self.characters):
            self._numbers.setdefault(compose(character), number)
        # Characters that NFC writes as two, such as some of Devanagari, stay one where the dictionary has them.
        self._whole = {compose(each): each for each in self.characters if len(each) == 1 < len(compose(each))}

    def __len__(self) -> int:
        return len(self.characters)

    def unmatched(self) -> list[str]:
        """Return the entries that no character of a text can match, since texts are composed, and in lower case if so set."""
        single = [entry for entry in self.characters if len(self._fold(entry)) == 1]
        reached = {self._numbers[self._fold(entry)] for entry in single if self._fold(entry) in self._numbers}
        return [entry for number, entry in enumerate(self.characters) if number not in reached]

    def drop_unknown(self, text: str) -> str:
        """Return `text` in the form of the dictionary, without the characters that are not in it."""
        return ''.join(filter(self._numbers.__contains__, self._fold(text)))

    def find_unknown(self, text: str) -> str:
        """Return the characters of `text` that are not in the dictionary."""
        return ''.join(character for character in self._fold(text) if character not in self._numbers)

    def encode_ctc(self, text: str) -> list[int]:
        """Return the target [L] of the CTC loss. Raises UnusableTextError as `encode` does."""
        return self.encode(text).ctc

    def encode(self, text: str) -> EncodedText:
        """Encode `text` for training. Raises UnusableTextError if it is too long or has no character of the dictionary."""
        if (length := len(self._fold(text))) > self.max_length:
            raise UnusableTextError(f'{shorten(text)} has {length} characters, more than max_length ({self.max_length})')
        encoded = self.encode_label(text)
        return encoded._replace(ctc=[self._numbers[character] + 1 for character in self.drop_unknown(text)])

    def encode_label(self, text: str) -> EncodedText:
        """Encode `text`, of any length, for evaluation; `ctc` stays empty.

        Raises UnusableTextError if it has no character of the dictionary.
        """
        # Unknown characters can be neither learned nor read: the metric counts them apart.
        label = self.drop_unknown(text)
        if not label:
            raise UnusableTextError(f'{shorten(text)} has no character of the dictionary' if text else 'the text is empty')
        in_order = reverse_runs(label) if self.right_to_left else label
        return EncodedText(in_order, len(self._fold(text)) - len(label), [])

    def encode_sar(self, text: str) -> list[int]:
        """Return the target [max_length] of SAR: begin, characters, end, padding.

        Raises UnusableTextError as `encode` does, and if begin and end do not fit into `max_length`.
        """
        edge, padding = len(self) + 1, len(self) + 2
        return self._add_delimiters(text, edge, -1, edge, padding)

    def encode_nrtr(self, text: str) -> list[int]:
        """Return the target [max_length] of NRTR; errors as in `encode_sar`."""
        return self._add_delimiters(text, 2, 3, 3, 0)

    def _add_delimiters(self, text: str, begin: int, shift: int, end: int, padding: int) -> list[int]:
        """Enclose the CTC indices, each plus `shift`, in `begin` and `end`, and fill them up to max_length."""
        numbers = [number + shift for number in self.encode_ctc(text)]
        room = self.max_length - 2
        if len(numbers) > room:
            raise UnusableTextError(
                f'{shorten(text)} has {len(numbers)} characters, more than the {room} that the attention decoder has room for'
            )
        return [begin, *numbers, end] + [padding] * (room - len(numbers))

    def decode(self, logits: Tensor) -> list[Reading]:  # [B, T, C + 1]
        """Decode greedily: take the most probable class of each time step, then merge repetitions and drop blanks."""
        probabilities, numbers = logits.float().softmax(-1).max(-1)  # [B, T] each
        # One copy to the host; float32 holds all numbers exactly.
        columns = torch.stack([numbers.to(probabilities.dtype), probabilities]).cpu()
        rows = zip(columns[0].int().tolist(), columns[1].tolist(), strict=True)
        readings = [collapse_ctc(*row, self.characters) for row in rows]
        return [replace(found, text=reverse_runs(found.text)) for found in readings] if self.right_to_left else readings

    def _fold(self, text: str) -> str:
        text = compose(text.lower() if self.lower_case else text)
        for parts, whole in self._whole.items():
            text = text.replace(parts, whole)
        return text if text.isascii() else ''.join(map(self._divide, text))

    def _divide(self, character: str) -> str:
        """Divide a letter with an accent that the dictionary has only as two entries."""
        parts = character if character in self._numbers else unicodedata.normalize('NFD', character)
        return parts if all(part in self._numbers for part in parts) else character


def compose(text: str) -> str:
    """Return `text` in Unicode's normal form NFC."""
    return text if text.isascii() else unicodedata.normalize('NFC', text)


def pad_rows(rows: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return rows of B lists as a tensor [B, length] int64, padded with 0."""
    padded = np.zeros((len(rows), length), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(padded)
