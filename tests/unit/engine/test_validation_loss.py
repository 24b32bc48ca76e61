"""The loss of the evaluation samples (`evaluate.loss`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from phalanx.data.samples import Draw
from phalanx.engine.evaluation import Setup
from phalanx.engine.job import open_job
from phalanx.engine.precision import Precision
from phalanx.engine.validation import validation_loss
from phalanx.families.catalog import FAMILIES
from phalanx.parallel.step import WholeStep
from running import TINY, records, run_here

DEMOS = {
    'segmentation': (TINY[0], *TINY[2:]),
    'detection': ('ppyoloe_digits', 'data.train_scenes=2', 'data.eval_scenes=3'),
    'recognition': ('crnn_digits', 'data.train_lines=2', 'data.eval_lines=3'),
    'table': ('slanet_rendered', 'data.train_tables=2', 'data.eval_tables=3'),
    'text_detection': ('db_pages', 'data.train_pages=2', 'data.eval_pages=3'),
}


def loss_of(*recipe: str, batch_size: int) -> tuple[float, torch.nn.Module]:
    """The validation loss of a fresh network."""
    words = (*recipe[1:], f'evaluate.batch_size={batch_size}', 'train.workers=0')
    job, cpu = open_job(recipe[0], [(word, word) for word in words]), torch.device('cpu')
    torch.manual_seed(0)
    model = job.task.model()
    setup = Setup(job.recipe, cpu, Precision(job.recipe.precision, cpu))
    samples = job.task.for_validation_loss(job.task.dataset('eval')).dataset('train')
    return validation_loss(job.task, model, setup, WholeStep(epochs=1.0), samples), model


def test_it_is_the_mean_over_all_pixels_by_a_network_as_it_is_evaluated() -> None:
    """By hand, with torch's own cross entropy: three outputs, no transform."""
    words = (TINY[0], *TINY[2:], 'transforms=[]')
    found, model = loss_of(*words, batch_size=5)
    task = open_job(words[0], [(word, word) for word in words[1:]]).task
    scenes = task.dataset('eval')
    batch = task.collate([scenes[Draw(index, 0, 0, 0)] for index in range(13)])
    for module in model.modules():
        module.train(not isinstance(module, torch.nn.BatchNorm2d))
    with torch.no_grad():
        outputs = model(task.network_input(batch))
    labels = torch.stack(list(batch.label_maps()))
    assert found == pytest.approx(sum(F.cross_entropy(each, labels, ignore_index=255).item() for each in outputs), rel=1e-5)


@pytest.mark.parametrize('family', FAMILIES)
def test_every_family_has_one_and_nothing_of_the_network_changes(family: str) -> None:
    found, model = loss_of(*DEMOS[family], batch_size=2)
    assert 0 < found < float('inf')
    torch.manual_seed(0)
    fresh = open_job(DEMOS[family][0], [(word, word) for word in DEMOS[family][1:]]).task.model()
    assert all(
        ours.equal(theirs) for ours, theirs in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True)
    )
    assert all(module.training for module in model.modules())


def test_a_run_reports_it_beside_its_metrics(tmp_path: Path) -> None:
    words = (*TINY, 'train.steps=2', 'evaluate={loss: true, every: 1}', '--save_dir', str(tmp_path / 'run'))
    assert run_here('train', *words) == 0
    found = [line['validation_loss'] for line in records(tmp_path / 'run', 'eval')]
    assert len(found) == 2 and found[0] != found[1]
