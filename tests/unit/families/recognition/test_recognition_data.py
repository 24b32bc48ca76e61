"""Data sets of recognition: label files, LMDB, digit lines, shares and mixtures."""

import multiprocessing
import os
import pickle
import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from phalanx.data.listed import Packed
from phalanx.data.mixing import Shares
from phalanx.data.samples import Draw, SampleError
from phalanx.families.recognition.data import DATA
from phalanx.families.recognition.data.label_files import LabelFiles
from phalanx.families.recognition.data.lmdb_sets import Lmdb, LmdbSets, write_lmdb


class Named:
    """Source whose samples are their own names: letter and number."""

    def __init__(self, letter: str, size: int) -> None:
        self.letter, self.size = letter, size

    def __len__(self) -> int:
        return self.size

    def check_files(self) -> None:
        """Nothing is missing."""

    def name(self, index: int) -> str:
        return f'{self.letter}{index}'

    def read(self, draw: Draw) -> tuple[np.ndarray, str]:
        return np.zeros((2, 2, 3), np.uint8), self.name(draw.index)


def texts(source: Shares, epoch: int, seed: int = 0) -> list[str]:
    return [source.read(Draw(index, epoch, 0, seed))[1] for index in range(len(source))]


def words(root: Path, lines: dict[str, str], label_file: str = 'rec_gt_train.txt') -> None:
    """Write a data set of 2 x 2 images; image n has the value n everywhere."""
    for number, name in enumerate(lines):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 2, 3), number, np.uint8)).save(root / name)
    (root / label_file).write_text(''.join(f'{name}\t{text}\n' for name, text in lines.items()), encoding='utf-8')


def test_label_files_contain_paths_and_texts(tmp_path: Path) -> None:
    words(tmp_path, {'a/1.png': 'one', 'a/2 b.png': '二 three'})
    source = LabelFiles(root=tmp_path).split('train')
    image, text = source.read(Draw(1, 0, 0, 0))
    assert (len(source), text, source.name(1)) == (2, '二 three', str(tmp_path / 'a/2 b.png'))
    assert_array_equal(image, np.ones((2, 2, 3)))


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('1.png one', r"rec_gt_train.txt:1: expected an image and its text with '\t' between them, got '1.png one'"),
        ('../1.png\tone', "rec_gt_train.txt:1: '../1.png' lies outside the data set"),
        ('/1.png\tone', "rec_gt_train.txt:1: '/1.png' lies outside the data set"),
    ],
)
def test_a_malformed_line_is_reported_with_file_and_number(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / 'rec_gt_train.txt').write_text(line + '\n')
    with pytest.raises(ValueError, match=re.escape(message)):
        LabelFiles(root=tmp_path).split('train')


def test_all_malformed_lines_of_a_label_file_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / 'rec_gt_train.txt').write_text('1.png one\n2.png\ttwo\n../3.png\tthree\n')
    with pytest.raises(ValueError, match=r"(?s)txt:1: expected an image.*\n.*txt:3: '\.\./3\.png' lies outside"):
        LabelFiles(root=tmp_path).split('train')


def test_a_line_with_a_list_of_images_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / 'rec_gt_train.txt').write_text('["1.png", "2.png"]\tone\n')
    with pytest.raises(FileNotFoundError, match='a line names one image: write a line for each of a list'):
        LabelFiles(root=tmp_path).split('train').check_files()


def test_missing_images_are_reported_before_training(tmp_path: Path) -> None:
    words(tmp_path, {'1.png': 'one', '2.png': 'two'})
    (tmp_path / '2.png').unlink()
    with pytest.raises(
        FileNotFoundError, match=re.escape(f'1 file is missing in {tmp_path}: 2.png ({tmp_path}/rec_gt_train.txt:2)')
    ):
        LabelFiles(root=tmp_path).split('train').check_files()


def test_an_unreadable_image_is_reported_with_its_path(tmp_path: Path) -> None:
    words(tmp_path, {'1.png': 'one'})
    (tmp_path / '1.png').write_bytes(b'no image')
    with pytest.raises(SampleError, match=re.escape(str(tmp_path / '1.png'))):
        LabelFiles(root=tmp_path).split('train').read(Draw(0, 0, 0, 0))


def test_a_share_has_a_fixed_length_and_new_samples_in_each_epoch() -> None:
    source = Shares([Named('a', 10), Named('b', 4)], (0.3, 1.0))
    first, again, later = texts(source, 0), texts(source, 0), texts(source, 1)
    assert len(first) == 3 + 4
    assert first == again
    assert set(first[:3]) != set(later[:3])
    assert first[3:] == later[3:] == ['b0', 'b1', 'b2', 'b3']
    assert texts(source, 0, seed=1)[:3] != first[:3]


def test_a_share_repeats_no_sample_and_covers_all_over_epochs() -> None:
    source = Shares([Named('a', 10)], (0.5,))
    seen = [texts(source, epoch) for epoch in range(20)]
    assert all(len(set(epoch)) == 5 for epoch in seen)
    assert {name for epoch in seen for name in epoch} == {f'a{number}' for number in range(10)}


def test_a_share_above_one_repeats_the_samples() -> None:
    counts = Counter(texts(Shares([Named('a', 4)], (2.5,)), 0))
    assert sorted(counts.values()) == [2, 2, 3, 3]


def test_shares_must_match_the_sources_and_not_be_empty() -> None:
    with pytest.raises(ValueError, match='there are 1 sources of samples, but 2 shares'):
        Shares([Named('a', 4)], (1, 1))
    with pytest.raises(ValueError, match='shares must be above 0, got 0'):
        Shares([Named('a', 4)], (0,))
    with pytest.raises(ValueError, match=r'the shares 0\.1 of the data sets round to no sample at all'):
        Shares([Named('a', 4)], (0.1,))
    with pytest.raises(ValueError, match='needs at least one source of samples'):
        Shares([], ())


def test_a_sample_of_a_fractional_share_is_named_after_its_source() -> None:
    source = Shares([Named('a', 4), Named('b', 4)], (1.5, 1.0))
    assert source.name(3) == 'a3'
    assert source.name(4) == "sample 0 of the epoch's share of a0 and those after it"
    assert source.name(6) == 'b0'


def test_packed_strings_are_unpacked_unchanged() -> None:
    strings = ['', '中 文', 'a' * 1000, os.fsdecode(b'\xff.png')]
    packed = Packed.of(strings)
    assert [packed[index] for index in range(len(packed))] == strings


lmdb = pytest.importorskip('lmdb')


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Folder of an LMDB data set with three words."""
    words(tmp_path / 'files', {'1.png': 'one', '2.png': '二', '3.png': 'three'})
    source = LabelFiles(root=tmp_path / 'files').split('train')
    assert write_lmdb(source, tmp_path / 'sets' / 'ST' / 'part') == 3
    return tmp_path / 'sets' / 'ST' / 'part'


def test_a_written_database_has_the_usual_layout(database: Path, tmp_path: Path) -> None:
    """Read with the package lmdb itself."""
    with lmdb.open(str(database), readonly=True, lock=False) as environment, environment.begin() as transaction:
        assert transaction.get(b'num-samples') == b'3'
        assert transaction.get(b'label-000000002') == '二'.encode()
        assert transaction.get(b'image-000000001') == (tmp_path / 'files' / '1.png').read_bytes()


def test_databases_are_found_at_and_below_the_named_folder(database: Path, tmp_path: Path) -> None:
    source = LmdbSets(root=tmp_path / 'sets', train=('ST',), train_shares=(2.0,)).split('train')
    image, text = source.read(Draw(4, 0, 0, 0))
    assert (len(source), text, int(image[0, 0, 0])) == (6, '二', 1)


def test_a_database_is_read_by_several_sources_and_processes_at_once(database: Path) -> None:
    one, other = Lmdb(database), Lmdb(database)
    assert [read_text(source, 1) for source in (one, other)] == ['二', '二']
    with multiprocessing.get_context('fork').Pool(2) as pool:
        assert pool.map(partial(read_text, one), [0, 1, 2]) == ['one', '二', 'three']
    assert read_text(pickle.loads(pickle.dumps(one)), 0) == 'one'  # noqa: S301 - our own bytes


def read_text(source: Lmdb, index: int) -> str:
    return source.read(Draw(index, 0, 0, 0))[1]


def test_a_missing_sample_of_a_database_is_reported_with_its_key(database: Path) -> None:
    with lmdb.open(str(database)) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b'image-000000002')
        transaction.put(b'label-000000003', b'\xff')
    source = Lmdb(database)
    with pytest.raises(SampleError, match=re.escape(f'{database} image-000000002: is not in the database')):
        source.read(Draw(1, 0, 0, 0))
    with pytest.raises(SampleError, match='its text is not UTF-8'):
        source.read(Draw(2, 0, 0, 0))


def test_samples_that_a_database_numbers_otherwise_or_does_not_count_are_named(database: Path) -> None:
    with lmdb.open(str(database)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b'num-samples', b'1')
    assert Lmdb(database).notes == {f'samples of {database} are not used, since its num-samples is 1': 2}
    with lmdb.open(str(database)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b'image-000000000', b'x')
    with pytest.raises(ValueError, match=r'numbers its samples from 0 \(image-000000000\); they must be numbered from 1'):
        Lmdb(database)


def test_a_database_that_was_cut_off_is_rejected(database: Path) -> None:
    """LMDB maps the file: reading beyond its end would kill the process."""
    with lmdb.open(str(database)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b'image-000000003', bytes(200_000))
    os.truncate(database / 'data.mdb', 100_000)
    with pytest.raises(ValueError, match=r'data\.mdb is cut off: it has 100000 of 2\d+ bytes'):
        Lmdb(database)


def test_a_database_may_be_named_by_its_file(database: Path, tmp_path: Path) -> None:
    assert len(LmdbSets(root=tmp_path / 'sets', train=('ST/part/data.mdb',)).split('train')) == 3


def test_a_foreign_database_is_rejected_and_none_is_overwritten(database: Path, tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / 'other')) as environment, environment.begin(write=True) as transaction:
        transaction.put(b'a', b'b')
    with pytest.raises(ValueError, match="has no key 'num-samples'"):
        Lmdb(tmp_path / 'other')
    with pytest.raises(FileExistsError, match='holds an LMDB data set already'):
        write_lmdb(LabelFiles(root=tmp_path / 'files').split('train'), database)
    with pytest.raises(FileNotFoundError, match='contains no LMDB data set'):
        LmdbSets(root=tmp_path, train=('files',)).split('train')


def test_generated_lines_become_a_database_with_the_same_pixels(tmp_path: Path) -> None:
    source = DATA['digit_lines'](train_lines=3).split('train')
    assert write_lmdb(source, tmp_path) == 3
    for index in range(3):
        image, text = source.read(Draw(index, 0, 0, 0))
        stored, stored_text = Lmdb(tmp_path).read(Draw(index, 0, 0, 0))
        assert_array_equal(stored, image)
        assert stored_text == text


def test_digit_lines_are_reproducible_and_have_the_requested_number_of_digits() -> None:
    source = DATA['digit_lines'](train_lines=30, digits=(2, 4)).split('train')
    lines = [source.read(Draw(index, index % 2, 0, 0)) for index in range(30)]
    again = source.read(Draw(7, 5, 9, 1))
    assert {len(text) for _, text in lines} == {2, 3, 4}
    assert all(text.isdigit() and min(image.shape[:2]) >= 10 for image, text in lines)
    assert_array_equal(again[0], lines[7][0])
    assert source.name(3) == 'train digit line 3'


def test_a_mixture_trains_on_all_parts_and_evaluates_on_the_first() -> None:
    few, many = (partial(DATA['digit_lines'], train_lines=count, eval_lines=count) for count in (3, 10))
    mixture = DATA['mixture'](parts=(few, many), train_shares=(2.0, 0.5))
    assert (len(mixture.split('train')), len(mixture.split('eval'))) == (6 + 5, 3)


@pytest.mark.parametrize(
    ('name', 'options', 'message'),
    [
        ('label_files', {'root': Path(), 'train_shares': (1.0, 2.0)}, 'there are 1 training files, but 2 train_shares'),
        ('lmdb_sets', {'root': Path(), 'train_shares': (1.0, 2.0)}, 'there are 1 training folders, but 2 train_shares'),
        ('mixture', {'parts': ()}, 'a mixture needs at least one part'),
        ('digit_lines', {'digits': (3, 2)}, 'digits is the minimum and the maximum per line, at least 1; got 3, 2'),
    ],
)
def test_invalid_options_are_rejected(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DATA[name](**options)
