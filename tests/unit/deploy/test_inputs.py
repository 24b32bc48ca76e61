"""Inputs of `phalanx predict` and `phalanx read`, the names of their results, and bad inputs."""

import io
import os
import resource
import signal
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from phalanx.data import pdf
from phalanx.data.samples import Image
from phalanx.deploy.inputs import Inputs, list_files
from phalanx.families.writing import write_picture, write_text
from phalanx.system.errors import RequestError
from phalanx.system.paths import parse_path
from stores import Store


def put(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [folder / name for name in names]


def test_a_result_has_the_name_of_its_image_and_a_suffix_or_folder_only_where_another_has_that_too(tmp_path: Path) -> None:
    photos = tmp_path / 'photos'
    put(photos, 'a.png', 'a.jpg', 'b.png', 'deep/a.png', 'clip.mov', 'clip.avi', 'clip.png')
    names = {
        file.relative_to(photos).as_posix(): stem.as_posix() for file, stem in list_files([photos], tmp_path / 'o').items()
    }
    assert names == {
        'a.png': 'a.png',
        'a.jpg': 'a.jpg',
        'b.png': 'b',
        'deep/a.png': 'deep/a',
        'clip.mov': 'clip.mov.mp4',
        'clip.avi': 'clip.avi.mp4',
        'clip.png': 'clip',
    }


def test_pages_of_one_name_in_two_folders_are_distinguished_by_folder(tmp_path: Path) -> None:
    first, second, third = put(tmp_path, 'x/page.png', 'y/page.png', 'y/other.png')
    assert list_files([first, second, third, first], tmp_path / 'o') == {
        first: Path('x/page.png'),
        second: Path('y/page.png'),
        third: Path('other'),
    }
    assert list_files([tmp_path / 'x', tmp_path / 'y'], tmp_path / 'o')[second] == Path('y/page.png')


def test_files_in_a_folder_that_are_not_images_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, 'a.png', 'a.json', 'b.json', 'scan.heic', 'c.gif', 'd.pdf')
    assert {file.name for file in list_files([tmp_path], tmp_path / 'o')} == {'a.png', 'c.gif', 'd.pdf'}
    assert capsys.readouterr().err == 'left out: 1 .heic, 2 .json\n'


def test_a_link_in_a_folder_to_a_file_that_is_gone_is_an_input_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PIL.Image.new('RGB', (4, 4)).save(tmp_path / 'a.png')
    (tmp_path / 'b.png').symlink_to(tmp_path / 'gone.png')
    inputs = Inputs(list_files([tmp_path], tmp_path / 'o'), tmp_path / 'o', 'reading')
    read = [stem.name for file, stem in inputs.each() if inputs.pages(file, stem, lambda image, stem: None)]
    assert (read, inputs.failed) == (['a'], 1)
    assert 'b.png' in capsys.readouterr().err


def test_an_address_that_cannot_be_read_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match='not one of s3, gs, az, https'):
        list_files([parse_path('ftp://example.org/a.jpg')], tmp_path)


def test_each_page_has_a_result_and_one_that_fails_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = [PIL.Image.fromarray(np.full((4, 6), value, np.uint8)) for value in (10, 20, 30)]
    pictures[0].save(tmp_path / 'many.tif', save_all=True, append_images=pictures[1:])
    pictures[0].save(tmp_path / 'one.png')
    (tmp_path / 'bad.png').write_bytes(b'no image')
    inputs = Inputs(list_files([tmp_path], tmp_path / 'o'), tmp_path / 'o', 'reading')
    written = {}

    def work(image: Image, stem: Path) -> None:
        if image.max() == 20:
            raise RuntimeError('the network does not take it')
        written[stem.name] = int(image.max())

    assert sum(inputs.pages(file, stem, work) for file, stem in inputs.each()) == 3
    assert written == {'many-p0001': 10, 'many-p0003': 30, 'one': 10}
    assert inputs.failed == 2
    bad, page = capsys.readouterr().err.strip().splitlines()
    assert bad.startswith(f'skipped: {tmp_path / "bad.png"}: is not an image that can be decoded')
    assert page == f'skipped: {tmp_path / "many.tif"}, page 2: the network does not take it'


def test_a_pdf_file_is_read_or_names_the_missing_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PIL.Image.new('RGB', (72, 72), 'red').save(tmp_path / 'a.pdf')
    inputs = Inputs(list_files([tmp_path / 'a.pdf'], tmp_path / 'o'), tmp_path / 'o', 'reading')
    done = sum(inputs.pages(file, stem, lambda image, _: None) for file, stem in inputs.each())
    assert done == pdf.is_installed()
    assert pdf.is_installed() or 'pip install "phalanx-vision[pdf]"' in capsys.readouterr().err


def test_a_file_on_a_web_server_is_an_input(store: Store, tmp_path: Path) -> None:
    store.objects['/pages/a.png'] = b''
    page = parse_path(f'{os.environ["AWS_ENDPOINT_URL"]}/pages/a.png')
    assert [*list_files([page], tmp_path / 'out')] == [page]
    with pytest.raises(RequestError, match=r'b\.png: there is no such file on that server'):
        list_files([page.with_name('b.png')], tmp_path / 'out')


def test_files_in_a_bucket_are_inputs(store: Store, tmp_path: Path) -> None:
    for name in ('a.png', 'deep/b.png', 'c.txt'):
        path = tmp_path / 'set' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new('RGB', (6, 4)).save(path, 'png')
    store.put(tmp_path / 'set', 'tests/set')
    files = list_files([parse_path('s3://tests/set')], tmp_path / 'o')
    assert {str(file): str(stem) for file, stem in files.items()} == {
        's3://tests/set/a.png': 'a',
        's3://tests/set/deep/b.png': 'deep/b',
    }
    inputs = Inputs(files, tmp_path / 'o', 'reading')
    assert [inputs.pages(file, stem, lambda image, stem: None) for file, stem in inputs.each()] == [1, 1]


def test_paths_on_standard_input_may_end_as_lines_of_windows_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = put(tmp_path, ' first one.png', 'second.png')
    monkeypatch.setattr('sys.stdin', io.StringIO(f'{first}\r\n\r\n{second}'))
    assert list(list_files([Path('-')], tmp_path / 'o')) == [first, second]


@pytest.mark.parametrize('ending', ['.png', '.jpg', '.json'])
def test_a_result_that_the_disk_has_no_room_for_leaves_no_part_of_a_file(tmp_path: Path, ending: str) -> None:
    """A process that may write files of 100 bytes; the name is as long as names may be."""
    stem = tmp_path / ('ü' * 125)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match='File too large'):
            if ending == '.json':
                write_text(stem, ending, 'x' * 200)
            else:
                write_picture(stem, ending, np.random.default_rng(0).integers(256, size=(40, 40, 3), dtype=np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not list(tmp_path.iterdir())
    (written,) = write_text(stem, ending, 'x')
    assert written.read_text() == 'x'
