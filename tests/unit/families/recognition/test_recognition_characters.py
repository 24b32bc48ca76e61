"""Dictionaries, and encoding and decoding of texts."""

import pickle
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.families.recognition.characters import (
    BuiltIn,
    Characters,
    Dictionary,
    UnusableTextError,
    pad_rows,
    read_dictionary,
)
from phalanx.families.recognition.metric import ReadingAccuracy
from phalanx.families.recognition.texts import Label

ABC = Characters('abc', lower_case=True, max_length=6)


def test_texts_are_taken_in_one_normal_form() -> None:
    """u with a combining diaeresis is the entry ü; the ohm sign is the letter omega, the entry of which then means nothing."""
    characters = Characters(('\u00fc', 'u', '\u2126', '\u03a9'), lower_case=False, max_length=2)
    assert characters.encode('u\u0308\u2126') == ('\u00fc\u03a9', 0, [1, 4])
    assert characters.find_unknown('u\u0308') == ''
    assert characters.unmatched() == ['\u2126']


def test_arabic_is_learned_in_the_order_of_the_image_and_compared_in_that_of_reading() -> None:
    """The image has, from the left, 12, alef and beh: beh is read first. CTC sees 1, 2, alef, beh; truth and reading agree."""
    characters = Characters('12\u0627\u0628', lower_case=False, right_to_left=True, max_length=4)
    encoded = characters.encode('12\u0627\u0628')
    assert encoded == ('\u0628\u062712', 0, [1, 2, 3, 4])
    logits = torch.full((1, 4, 5), -9.0)
    logits[0, range(4), [1, 2, 3, 3]] = 9.0  # alef in place of beh, merged with the one before
    (reading,) = characters.decode(logits)
    assert reading.text == '\u062712'
    metric = ReadingAccuracy()
    batch = SimpleNamespace(truths=(Label(encoded.label),))
    metric.update([reading], batch)  # type: ignore[arg-type]
    assert metric.compute()['edit_similarity'] == 0.75  # one deletion among four
    assert metric.table() == [{'true': '\u0628', 'read': '(nothing)', 'times': 1}]


def test_the_dictionary_says_whether_a_script_goes_from_right_to_left() -> None:
    assert Dictionary(dictionary='arabic_dict').read().right_to_left
    assert not Dictionary(dictionary='arabic_dict', right_to_left=False).read().right_to_left
    assert not Dictionary(dictionary='latin_dict').read().right_to_left


def test_a_letter_is_divided_where_the_dictionary_has_its_accent_only() -> None:
    characters = Characters(('u', '\u0308'), lower_case=False, max_length=2)
    assert characters.encode('\u00fc') == characters.encode('u\u0308') == ('u\u0308', 0, [1, 2])
    assert characters.find_unknown('\u00e9') == '\u00e9'


def test_an_entry_that_the_normal_form_would_divide_stays_whole() -> None:
    """QA of Devanagari is KA and a sign in NFC; PaddleOCR's dictionary has it as one character."""
    characters = Characters(('\u0915', '\u0958'), lower_case=False, max_length=1)
    assert characters.encode('\u0958') == characters.encode('\u0915\u093c') == ('\u0958', 0, [2])
    assert characters.unmatched() == []


def write_file(path: Path, text: str, encoding: str = 'utf-8') -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def logits(*numbers: int, classes: int = 4) -> torch.Tensor:
    """Logits [1, T, classes] that predict class numbers[t] at time step t with certainty."""
    return 100 * torch.nn.functional.one_hot(torch.tensor([numbers]), classes).float()


def test_a_dictionary_file_has_one_character_per_line_in_order(tmp_path: Path) -> None:
    ours = Dictionary(dictionary=write_file(tmp_path / 'd.txt', '中\r\n \r\nb\r\n')).read()
    assert ours.characters == ('中', ' ', 'b')
    assert ours.encode_ctc('b中') == [3, 1]


def test_a_duplicate_character_is_encoded_as_the_last_and_decoded_from_both(tmp_path: Path) -> None:
    ours = Dictionary(dictionary=write_file(tmp_path / 'd.txt', 'a\n \n'), space=True).read()
    assert (len(ours), ours.encode_ctc('a a')) == (3, [1, 3, 1])
    assert ours.decode(logits(1, 2, 1))[0].text == ours.decode(logits(1, 3, 1))[0].text == 'a a'


@pytest.mark.parametrize(
    ('name', 'classes'),  # of the published networks: the characters, the blank and a space
    [
        ('ppocr_keys_v1', 6625),
        ('ppocrv5_dict', 18385),
        ('ppocrv6_dict', 18710),
        ('ppocrv6_tiny_dict', 6906),
        ('chinese_cht_dict', 8423),
        ('japan_dict', 4401),
        ('korean_dict', 3690),
        ('latin_dict', 187),
        ('cyrillic_dict', 165),
        ('en', 97),
        ('french_dict', 138),
        ('german_dict', 145),
    ],
)
def test_published_dictionaries_fit_the_published_networks(name: BuiltIn, classes: int) -> None:
    assert len(Dictionary(dictionary=name, space=True).read()) + 1 == classes


@pytest.mark.parametrize('name', get_args(BuiltIn))
def test_built_in_dictionaries_have_each_character_once(name: BuiltIn) -> None:
    characters = read_dictionary(name)
    assert len(set(characters)) == len(characters)


@pytest.mark.parametrize(
    ('content', 'message'),
    [('a\n\nb\n', 'd.txt:2: is empty; a dictionary has one character per line'), ('', 'd.txt:1: is empty')],
)
def test_an_empty_line_in_a_dictionary_is_reported_with_its_number(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Dictionary(dictionary=write_file(tmp_path / 'd.txt', content)).read()


@pytest.mark.skipif(find_spec('onnx') is None, reason='reading ONNX files needs onnx')
def test_the_characters_of_an_exported_recogniser_are_those_of_its_metadata(tmp_path: Path) -> None:
    from onnx import helper, save

    def exported(name: str, metadata: dict[str, str]) -> Path:
        model = helper.make_model(helper.make_graph([], 'network', [], []))
        helper.set_model_props(model, metadata)
        save(model, tmp_path / name)
        return tmp_path / name

    ours = Dictionary(dictionary=exported('a.onnx', {'character': '中\n\u2028\nb\n'}), space=True).read()
    assert ours.characters == ('中', '\u2028', 'b', ' ')
    with pytest.raises(ValueError, match=r'b\.onnx: has no `character` in its metadata'):
        Dictionary(dictionary=exported('b.onnx', {})).read()
    with pytest.raises(ValueError, match=r'c\.onnx: is not a complete ONNX file'):
        Dictionary(dictionary=write_file(tmp_path / 'c.onnx', 'a\nb\n')).read()


def test_a_missing_dictionary_is_reported_with_the_built_in_names() -> None:
    dictionary = Dictionary(dictionary=Path('none.txt'))
    with pytest.raises(FileNotFoundError, match=re.escape('built-in dictionaries are digits, alphanumeric, letters, en')):
        dictionary.read()


def test_only_the_alphanumeric_dictionary_ignores_case_by_default() -> None:
    assert Dictionary().read().drop_unknown('Ab-1') == 'ab1'
    assert Dictionary(dictionary='letters').read().drop_unknown('Ab-1') == 'Ab1'
    assert Dictionary(dictionary='letters', lower_case=True).read().drop_unknown('Ab-1') == 'ab1'


def test_unknown_characters_are_dropped_and_counted() -> None:
    assert (ABC.drop_unknown('a-Bé'), ABC.find_unknown('a-Bé'), ABC.encode_ctc('a-Bé')) == ('ab', '-é', [1, 2])


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('', 'the text is empty'),
        ('xyz', "'xyz' has no character of the dictionary"),
        ('abcabca', "'abcabca' has 7 characters, more than max_length (6)"),
        (999 * 'a', f"'{76 * 'a'}... has 999 characters"),
    ],
)
def test_a_text_that_cannot_be_learned_is_rejected_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(UnusableTextError, match=re.escape(reason)):
        ABC.encode_ctc(text)


def test_the_attention_decoder_needs_room_for_begin_and_end() -> None:
    """Indices by hand: a, b, c are 0 to 2, unknown 3, begin and end 4, padding 5."""
    assert ABC.encode_sar('cab') == [4, 2, 0, 1, 4, 5]
    with pytest.raises(UnusableTextError, match='more than the 4 that the attention decoder has room for'):
        ABC.encode_sar('abcab')


def test_nrtr_numbers_characters_after_padding_unknown_begin_and_end() -> None:
    """By hand: a, b, c are 4 to 6, padding 0, begin 2, end 3."""
    assert ABC.encode_nrtr('c-ab') == [2, 6, 4, 5, 3, 0]
    with pytest.raises(UnusableTextError, match='more than the 4 that the attention decoder has room for'):
        ABC.encode_nrtr('abcab')


def test_decoding_merges_repetitions_but_not_across_a_blank() -> None:
    assert ABC.decode(logits(0, 1, 1, 0, 1, 2, 2, 3))[0].text == 'aabc'


def test_a_line_of_blanks_decodes_to_an_empty_text_of_confidence_zero() -> None:
    (reading,) = ABC.decode(logits(0, 0, 0))
    assert (reading.text, reading.confidence) == ('', 0.0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_decoding_equals_the_definition(numbers: list[int]) -> None:
    """Graves et al. 2006: merge repeated labels, then remove blanks; here with itertools."""
    from itertools import groupby

    expected = ''.join('-abc'[number] for number, _ in groupby(numbers) if number)
    assert ABC.decode(logits(*numbers))[0].text == expected


@given(st.text('abc', min_size=1, max_size=6))
def test_decoding_inverts_encoding(text: str) -> None:
    path = [number for label in ABC.encode_ctc(text) for number in (label, 0)]
    assert ABC.decode(logits(*path))[0].text == text


def test_rows_are_padded_with_blanks() -> None:
    assert pad_rows([[1, 2], [], [3]], 3).tolist() == [[1, 2, 0], [0, 0, 0], [3, 0, 0]]


def test_characters_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(ABC)).encode_ctc('cab') == [3, 1, 2]  # noqa: S301 - our own bytes
