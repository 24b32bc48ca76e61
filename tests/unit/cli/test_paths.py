"""Paths as people write them: `..`, links, trailing slashes, blanks and `~` mean the same folder in every command."""

import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from phalanx.cli.main import main
from phalanx.config.read import read
from phalanx.engine.job import open_job
from phalanx.system.paths import normalise_path, parse_path
from running import TINY, run_here

IMAGES = 8


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with `my photos/` (images and masks), a link to it, and the working folder `work/here`."""
    data = tmp_path / 'my photos'
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 48, 3), np.uint8)
        for folder, image in (('images', pixels), ('masks', (pixels[..., 0] > 99).astype(np.uint8))):
            (data / folder).mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(data / folder / f'{number}.png'), image)
    (tmp_path / 'elsewhere').mkdir()
    (tmp_path / 'elsewhere' / 'link').symlink_to(data)
    (tmp_path / 'elsewhere' / 'inner').symlink_to(data / 'images')
    (tmp_path / 'work' / 'here').mkdir(parents=True)
    monkeypatch.chdir(tmp_path / 'work' / 'here')
    monkeypatch.setenv('HOME', str(tmp_path))
    return tmp_path


# Each names the folder of data, from the working folder or another one, and says where the recipe goes by default.
PLACES = [
    ('work/here', '../../my photos', 'work/here/my photos_phalanx/my photos.yml'),
    ('work/here', '../../my photos/', 'work/here/my photos_phalanx/my photos.yml'),
    ('work/here', '../../work/../my photos/images/..', 'work/here/my photos_phalanx/my photos.yml'),
    ('work/here', '../../elsewhere/link', 'work/here/link_phalanx/link.yml'),
    ('work/here', '../../elsewhere/inner/..', 'work/here/my photos_phalanx/my photos.yml'),  # the link leads elsewhere
    ('work/here', '~/my photos', 'work/here/my photos_phalanx/my photos.yml'),
    ('my photos', '.', 'my photos_phalanx/my photos.yml'),  # not within the data
    ('my photos/images', '..', 'my photos_phalanx/my photos.yml'),
]


@pytest.mark.parametrize(('working', 'given', 'recipe'), PLACES)
def test_new_reads_a_folder_in_every_spelling_of_its_path(
    home: Path, monkeypatch: pytest.MonkeyPatch, working: str, given: str, recipe: str
) -> None:
    monkeypatch.chdir(home / working)
    assert main(['new', given, '--no_trial']) == 0
    dataset = open_job(str(home / recipe)).task.dataset('train')
    assert len(dataset) + len(open_job(str(home / recipe)).task.dataset('eval')) == IMAGES
    assert sorted(path.name for path in (home / 'my photos').iterdir()) == ['images', 'masks']  # nothing was added


@pytest.mark.parametrize('out', ['../out', '../../work/here/../out/', '~/work/out', '../here/../out'])
def test_prepare_and_new_write_to_the_folder_of_out(home: Path, out: str) -> None:
    assert main(['new', '../../my photos', '--no_trial', '--out', out]) == 0
    assert (home / 'work' / 'out' / 'out.yml').is_file()
    assert main(['data', 'prepare', 'masks', '../../elsewhere/inner/..', f'--out={out.rstrip("/")}2']) == 0
    assert len([*(home / 'work' / 'out2' / 'images').rglob('*.png')]) == IMAGES


def test_a_recipe_takes_paths_with_a_tilde(home: Path) -> None:
    assert main(['new', '~/my photos', '--no_trial', '--out', '~/made']) == 0
    (home / 'work' / 'own.yml').write_text('_base_: ~/made/made.yml\ndata: {root: ~/my photos/../}\n')
    assert read(parse_path('~/work/own.yml')).value['task'].value == 'segmentation'
    job = open_job('~/work/own.yml', [('train.cache={gib: 1, folder: ~/cache}', '--set')])
    assert job.recipe.train.cache.folder == home / 'cache'
    assert job.name == 'own'


@pytest.mark.parametrize('given', ['.', '../run/', '../../work/here/../run', '~/work/run', '../linked'])
def test_a_run_folder_has_one_name_in_every_spelling_of_its_path(
    home: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    run = home / 'work' / 'run'
    run.mkdir()
    (home / 'work' / 'linked').symlink_to(run)
    (run / 'config.yml').write_text('_base_: unet_digits\n')
    monkeypatch.chdir(run)
    job = open_job(given)
    assert job.name in ('run', 'linked')
    assert job.folder.resolve() == run


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    run = tmp_path_factory.mktemp('trained') / 'run'
    assert run_here('train', *TINY, 'train.steps=1', 'evaluate.enabled=false', 'report.pictures=0', '--save_dir', str(run)) == 0
    return run


@pytest.mark.parametrize(
    'given',
    ['../../work/here/../a run/', *(pytest.param(path, marks=pytest.mark.long) for path in ('~/work/a run', '../linked'))],
)
def test_commands_take_every_spelling_of_a_path(home: Path, trained: Path, given: str) -> None:
    shutil.copytree(trained, home / 'work' / 'a run', symlinks=True)
    (home / 'work' / 'linked').symlink_to(home / 'work' / 'a run')
    image, out = '../../elsewhere/inner/0.png', f'{given}/../out'
    assert run_here('report', given) == 0
    assert run_here('eval', given, '--page', f'{out}/eval.html') == 0
    assert run_here('predict', given, image, '~/my photos/images/1.png', '--out', f'{out}/results/') == 0
    made = home / 'work' / 'out'
    assert {path.name for path in made.iterdir()} >= {'eval.html', 'results'}
    assert {'0.png', '1.png'} <= {path.name for path in (made / 'results').iterdir()}


@pytest.mark.parametrize(('given', 'near'), [('own.yaml', 'own.yml'), ('runs/mein', 'runs/mine')])
def test_a_missing_recipe_or_run_is_reported_with_the_nearest_name(
    home: Path, capsys: pytest.CaptureFixture[str], given: str, near: str
) -> None:
    Path('runs/mine').mkdir(parents=True)
    for file in ('runs/mine/config.yml', 'own.yml'):
        Path(file).write_text('_base_: unet_digits\n')
    assert main(['config', given]) == 2
    assert f'no such file or shipped recipe; did you mean {near!r}?' in capsys.readouterr().err


@pytest.mark.parametrize('text', ['~nobody-of-this-name/x', 'a b/~', '~~'])
def test_a_tilde_that_is_not_a_home_stays_as_it_is(text: str) -> None:
    assert parse_path(text) == Path(text)


def test_a_settled_path_keeps_links_but_those_in_front_of_a_step_up(home: Path) -> None:
    elsewhere = home / 'elsewhere'
    assert normalise_path(elsewhere / 'link' / 'images') == elsewhere / 'link' / 'images'
    assert normalise_path(elsewhere / 'inner' / os.pardir / 'masks') == home / 'my photos' / 'masks'
    assert normalise_path(Path('../x')) == home / 'work' / 'x'


def test_a_run_that_is_not_there_is_answered_with_those_that_are(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ('mine', 'other'):
        Path(f'runs/{name}').mkdir(parents=True)
        Path(f'runs/{name}/config.yml').touch()
    assert main(['export', 'runs/xxxxxxxx']) == 2
    assert 'no such file or shipped recipe; there are runs/mine, runs/other' in capsys.readouterr().err
    for command in (('predict', 'nosuch', 'a.png'), ('eval', 'nosuch'), ('export', 'nosuch')):
        assert main(command) == 2
        assert 'nosuch: no such file or shipped recipe; there are runs/mine, runs/other' in capsys.readouterr().err


def test_a_run_is_not_looked_for_in_vain_where_there_are_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['export', 'xxxxxxxx']) == 2
    assert 'xxxxxxxx: no such file or shipped recipe; there are no runs and no recipes here' in capsys.readouterr().err


def test_an_image_that_is_not_there_is_answered_with_the_nearest(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path('pictures').mkdir()
    Path('pictures/eins.png').touch()
    assert main(['predict', 'unet_digits', 'pictures/ein.png', '--out', 'out']) == 2
    assert "pictures/ein.png: there is no such file or folder; did you mean 'pictures/eins.png'?" in capsys.readouterr().err


@pytest.mark.parametrize('words', ['train r.yml --save_dir', 'launch s.py --log_dir', 'eval runs/a --weights', 'new r --out'])
def test_an_empty_path_is_not_the_working_folder_or_the_default(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A shell gives it for `--save_dir "$FOLDER"` if there is no such variable."""
    command, argument, option = words.split()
    with pytest.raises(SystemExit, match='2'):
        main([command, option, '', argument])
    assert 'the path is empty; is a variable of the shell not set?' in capsys.readouterr().err
