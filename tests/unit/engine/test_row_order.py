"""Weights whose head has its classes in another order would read one as another: they are refused wherever a run is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.config.show import to_yaml
from phalanx.deploy.export import Options, export
from phalanx.engine import worker
from phalanx.engine.folder import check_folder, resolve_names
from phalanx.engine.initial import describe_moved
from phalanx.engine.job import Job, open_job
from phalanx.engine.trained import Trained
from phalanx.system.errors import CheckpointError, RequestError

MOVED = "was trained with '1' as row 2 of its head, the recipe has it as row 1; use the classes or characters of that run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Folder of a run that was trained with the characters 0, 1, 2."""
    (tmp_path / 'config.yml').write_text(to_yaml(resolve_names(job('["0", "1", "2"]'))))
    return tmp_path


def job(dictionary: str, folder: Path | None = None) -> Job:
    """Job of a recogniser with the characters of `dictionary`, of a run folder or new."""
    words = [f'characters.dictionary={dictionary}', 'device=cpu']
    return open_job(str(folder) if folder else 'crnn_digits', [(word, '--set') for word in words])


def test_a_class_in_another_place_is_found(run: Path) -> None:
    assert MOVED in describe_moved(job('["1", "0", "2"]').task, run)


def test_a_token_of_tables_in_another_place_is_found(tmp_path: Path) -> None:
    trained, other = (
        open_job('slanet_rendered', [(f'more_tokens={spans}', '--set')])
        for spans in ('[\'colspan="11"\', \'rowspan="11"\']', '[\'rowspan="11"\', \'colspan="11"\']')
    )
    (tmp_path / 'config.yml').write_text(to_yaml(resolve_names(trained)))
    assert describe_moved(trained.task, tmp_path) == ''
    assert '\' rowspan="11"\' as row 30 of its head, the recipe has it as row 29' in describe_moved(other.task, tmp_path)


@pytest.mark.parametrize('characters', ['["0", "1", "2"]', '[a, "1", c]', '["0", "1", "2", "3"]'])
def test_other_names_in_the_same_places_may_mean_the_same(run: Path, characters: str) -> None:
    assert describe_moved(job(characters).task, run) == ''


def test_a_folder_without_a_recipe_says_nothing_of_its_classes(tmp_path: Path) -> None:
    assert describe_moved(job('["1", "0", "2"]').task, tmp_path) == ''


def test_all_that_use_the_weights_of_a_run_refuse_another_order(run: Path, tmp_path: Path) -> None:
    other = job('["1", "0", "2"]', run)
    with pytest.raises(CheckpointError, match=MOVED):
        worker.evaluate(other, None)
    with pytest.raises(CheckpointError, match=MOVED):
        Trained(other, None, 'cpu')
    with pytest.raises(CheckpointError, match=MOVED):
        export(other, tmp_path / 'a.onnx', Options())
    with pytest.raises(RequestError, match=f'--resume auto: {run}: {MOVED}'):
        check_folder(other, 'auto', fresh=False)
