"""Data sets that are read once per node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import drawn
from layouts import LAYOUTS, write_recipe
from phalanx.data.samples import Draw
from phalanx.engine.job import Job, open_job
from phalanx.engine.parts import Parts
from phalanx.engine.samples import NodeSamples, announced_handle
from phalanx.system.shared import Shared
from running import TINY

BASES = {'segmentation': 'pp_liteseg', 'detection': 'ppyoloe', 'recognition': 'crnn', 'table': 'slanet', 'text_detection': 'db'}
KINDS = [(family, data) for family, layouts in LAYOUTS.items() for data in layouts]


@pytest.mark.parametrize(('family', 'data'), KINDS)
def test_every_data_set_can_be_shared(family: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples of the copy are those of the original."""
    monkeypatch.chdir(tmp_path)
    write_recipe(family, BASES[family], data)
    task = open_job('mine.yml').task
    own = task.dataset('eval')
    shared = Shared.of(own)
    assert shared is not None
    copy = shared.load()
    assert len(copy) == len(own) and copy.notes == own.notes
    for index in range(len(own)):
        (image, truth), (of_copy, its_truth) = (each.source.read(Draw(index)) for each in (own, copy))
        assert copy.name(index) == own.name(index)
        np.testing.assert_array_equal(of_copy, image)
        np.testing.assert_equal(vars_of(its_truth), vars_of(truth))


def vars_of(value: object) -> object:
    return vars(value) if hasattr(value, '__dict__') else value


def job_of(root: Path, lines: str) -> Job:
    drawn.write(root / 'train.txt', lines)
    drawn.write(root / 'val.txt', 'a.png b.png\n')
    for name in ('a', 'b', 'c'):
        drawn.write(root / f'{name}.png', '')
    data = [f'data={{name: file_list, root: {root}, classes: [x, y]}}']
    words = [word for word in TINY[2:] if not word.startswith('data.')]
    return open_job(TINY[0], [(word, word) for word in (*data, *words)])


def fingerprint(job: Job) -> str:
    return NodeSamples(job, job.task.dataset('train'), job.task.dataset('eval')).fingerprint()


def test_nodes_with_other_lists_have_other_fingerprints(tmp_path: Path) -> None:
    job, other = job_of(tmp_path / '1', 'a.png b.png\n'), job_of(tmp_path / '2', 'a.png c.png\n')
    assert fingerprint(job) == fingerprint(job) != fingerprint(other)


def test_ranks_of_another_recipe_do_not_take_the_samples_of_a_launcher(tmp_path: Path) -> None:
    job, other = job_of(tmp_path / '1', 'a.png b.png\n'), job_of(tmp_path / '2', 'a.png b.png\n')
    assert announced_handle(job) is None
    with NodeSamples(job, job.task.dataset('train')).announced():
        assert announced_handle(job) is not None and announced_handle(other) is None
    assert announced_handle(job) is None


def test_a_launcher_keeps_no_copy_of_its_own(tmp_path: Path) -> None:
    job = job_of(tmp_path, 'a.png b.png\n')
    (dataset,) = NodeSamples(job, Parts(job.recipe, job.task).train).datasets
    assert not dataset.source._paths._block.flags.owndata and not dataset.source._paths._block.flags.writeable
