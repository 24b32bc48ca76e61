"""Drawn text: fonts that have the characters, the same picture for the same random numbers, new ones in every epoch."""

import pickle
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from phalanx.data.samples import Draw
from phalanx.families.recognition.data.rendered import Rendered
from phalanx.families.recognition.data.source import Source
from phalanx.synthetic import lines as rendering
from phalanx.synthetic.lines import Fonts, covered_characters, font_files, render_line


def find_font() -> Path:
    """DejaVu Sans, of the system or of matplotlib, whose characters are known: Latin and Cyrillic, no Chinese."""
    of_system = [path for path in font_files(None) if path.name == 'DejaVuSans.ttf']
    if of_system:
        return of_system[0]
    matplotlib = pytest.importorskip('matplotlib', reason='there is no DejaVu Sans here')
    return Path(matplotlib.get_data_path()) / 'fonts' / 'ttf' / 'DejaVuSans.ttf'


@pytest.fixture(scope='module')
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with DejaVu Sans and a broken font."""
    folder = tmp_path_factory.mktemp('fonts')
    shutil.copy(find_font(), folder)
    (folder / 'broken.ttf').write_bytes(b'no font')
    (folder / 'readme.txt').write_text('not a font')
    return folder


def sample(source: Source, index: int = 0, epoch: int = 0) -> tuple[np.ndarray, str]:
    draw = Draw(index, epoch, 0, 0)
    return source.read(draw)


def test_a_font_is_asked_for_each_character(fonts: Path) -> None:
    assert [path.name for path in font_files(fonts)] == ['DejaVuSans.ttf', 'broken.ttf']
    assert covered_characters(fonts / 'DejaVuSans.ttf', 'aЖ中 \U0010ffff') == frozenset('aЖ ')
    assert covered_characters(fonts / 'broken.ttf', 'a') == frozenset()


def test_a_font_of_symbols_writes_no_letters_even_where_it_has_something_in_their_places(fonts: Path, tmp_path: Path) -> None:
    content = bytearray((fonts / 'DejaVuSans.ttf').read_bytes())
    record = content.index(b'OS/2')  # tag, checksum, start, length
    content[int.from_bytes(content[record + 8 : record + 12]) + 30] = 12  # sFamilyClass: symbolic
    (tmp_path / 'symbols.ttf').write_bytes(content)
    assert covered_characters(tmp_path / 'symbols.ttf', 'a') == frozenset()


def test_where_the_system_has_no_font_pillow_has_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rendering, 'SYSTEM_FONTS', (tmp_path,))
    (font,) = Fonts(None, 'ab中').writing('ab')
    assert render_line('ab', font, np.random.default_rng(0)).shape[2] == 3


def test_only_fonts_with_every_character_of_a_text_write_it(fonts: Path) -> None:
    ours = Fonts(fonts, 'ab中')
    assert [path.name for path in ours.writing('ab')] == ['DejaVuSans.ttf']
    assert ours.writing('a中') == []


def test_fonts_without_any_of_the_characters_are_refused(fonts: Path) -> None:
    with pytest.raises(FileNotFoundError, match='holds no font that has the characters to be written'):
        Fonts(fonts, '中文 ')
    with pytest.raises(FileNotFoundError, match='there is no such folder of fonts'):
        Fonts(fonts / 'none', 'a')


def test_a_picture_is_a_function_of_its_random_numbers(fonts: Path) -> None:
    font = fonts / 'DejaVuSans.ttf'
    one, again, other = (render_line('Hello', font, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert_array_equal(one, again)
    assert one.shape != other.shape or (one != other).any()


@pytest.mark.parametrize('text', ['i', 'Hello world', '....', 'Ж' * 25])
def test_any_text_makes_a_picture_with_contrast(fonts: Path, text: str) -> None:
    for seed in range(10):
        picture = render_line(text, fonts / 'DejaVuSans.ttf', np.random.default_rng(seed))
        assert picture.dtype == np.uint8 and picture.shape[2] == 3 and min(picture.shape[:2]) >= 1
        assert np.ptp(picture.astype(int).mean(2)) > 15


def test_an_epoch_brings_new_samples_and_evaluation_the_same_ones(fonts: Path) -> None:
    data = Rendered(fonts=fonts, train_lines=5, eval_lines=3)
    train, held_out = data.split('train'), data.split('eval')
    assert (len(train), len(held_out)) == (5, 3)
    assert sample(train, epoch=0)[1] != sample(train, epoch=1)[1]
    assert_array_equal(sample(held_out, 1, epoch=0)[0], sample(held_out, 1, epoch=4)[0])
    assert sample(train, 1)[1] != sample(held_out, 1)[1]
    assert_array_equal(sample(pickle.loads(pickle.dumps(train)))[0], sample(train)[0])  # noqa: S301 - our own bytes


def test_random_texts_have_the_lengths_and_characters_asked_for(fonts: Path) -> None:
    source = Rendered(fonts=fonts, dictionary='digits', lengths=(2, 4)).split('train')
    texts = [sample(source, index)[1] for index in range(30)]
    assert {len(text) for text in texts} == {2, 3, 4}
    assert all(text.isdigit() for text in texts)


def test_words_come_in_three_cases_and_those_no_font_has_never(fonts: Path, tmp_path: Path) -> None:
    (tmp_path / 'words.txt').write_text('apple\n中文\n', encoding='utf-8')
    source = Rendered(fonts=fonts, words=tmp_path / 'words.txt', random_share=0.0).split('train')
    assert {sample(source, index)[1] for index in range(30)} == {'apple', 'Apple', 'APPLE'}


def test_characters_that_no_font_has_are_left_out_of_the_dictionary(fonts: Path, tmp_path: Path) -> None:
    (tmp_path / 'dictionary.txt').write_text('中\nЖ\nб\n', encoding='utf-8')
    source = Rendered(fonts=fonts, dictionary=tmp_path / 'dictionary.txt').split('train')
    assert set(''.join(sample(source, index)[1] for index in range(20))) == {'Ж', 'б'}


def test_backgrounds_may_be_cut_out_of_pictures(fonts: Path, tmp_path: Path) -> None:
    """The picture is all blue of one kind: half of the lines stand on it."""
    Image.fromarray(np.full((50, 50, 3), (10, 20, 250), np.uint8)).save(tmp_path / 'blue.png')
    source = Rendered(fonts=fonts, pictures=tmp_path).split('train')
    medians = [np.median(sample(source, index)[0], axis=(0, 1)) for index in range(40)]
    on_blue = sum(np.abs(median - (10, 20, 250)).max() < 40 for median in medians)
    assert 8 <= on_blue <= 32


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'lengths': (0, 3)}, 'lengths is the minimum and the maximum length, at least 1; got 0, 3'),
        ({'random_share': 1.5}, 'random_share must lie between 0 and 1, got 1.5'),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        partial(Rendered, **options)()
