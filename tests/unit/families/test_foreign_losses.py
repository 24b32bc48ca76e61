"""Losses written outside the package, as docs/extending.md describes them, train a step in each family."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.config.read import ConfigError
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.families.catalog import CATALOGS, FAMILIES
from phalanx.families.detection.loss import DetectionLoss
from phalanx.families.segmentation.loss import PixelLoss
from phalanx.families.task import Term

SMALL = ('train.global_batch_size=4', 'train.workers=0', 'train.channels_last=false', 'ema=null', 'device=cpu')
DEMOS = {
    'segmentation': ('unet_digits', 'data.train_scenes=4', 'data.eval_scenes=1', 'data.size=[32,64]'),
    'detection': ('ppyoloe_digits', 'data.train_scenes=4', 'data.eval_scenes=1', 'data.size=[64,64]'),
    'recognition': ('crnn_digits', 'data.train_lines=4', 'data.eval_lines=1', 'train_image_sizes=[]'),
    'table': ('slanet_rendered', 'data.train_tables=4', 'data.eval_tables=1', 'image_size=64', 'loss_coefficients=[]'),
    'text_detection': ('db_pages', 'data.train_pages=4', 'data.eval_pages=1', 'data.page_size=[64,64]'),
}


class PixelError(PixelLoss):
    def __call__(self, logits: Tensor, labels: Tensor, whole: Any) -> Term:
        return Term(F.cross_entropy(logits, labels, ignore_index=255, reduction='sum'), self.weights(labels))

    def weights(self, labels: Tensor) -> Tensor:
        return (labels != 255).sum()


class BoxError(DetectionLoss):
    def __call__(self, raw: Any, truths: Any, assigned: Any) -> dict[str, Term]:
        logits, distances = raw.logits.float(), raw.distances.float()
        return {'mine': Term(logits.square().sum() + distances.square().sum(), truths.exist.sum(), least=1)}

    def weights(self, boxes: Any, classes: Any) -> dict[str, Tensor]:
        return {'mine': torch.tensor(sum(map(len, boxes)))}


class TextError:
    heads = frozenset({'ctc'})

    def __call__(self, outputs: Any, texts: Any) -> dict[str, Term]:
        return {'mine': Term(outputs.ctc.square().sum(), self.weights(texts, 10)['mine'])}

    def weights(self, texts: Any, num_characters: int) -> dict[str, Tensor]:
        return {'mine': texts.lengths.sum()}


class TableError:
    def __call__(self, outputs: Any, targets: Any) -> dict[str, Term]:
        return {'mine': Term(outputs.logits.square().sum() + outputs.boxes.sum(), self.weights(targets)['mine'])}

    def weights(self, targets: Any) -> dict[str, Tensor]:
        return {'mine': torch.tensor(len(targets.ids))}


class MapError:
    def __call__(self, maps: Any, targets: Any, whole: Any) -> dict[str, Term]:
        errors = (maps.binary.squeeze(1) - targets.shrink_map).square()
        return {'mine': Term((errors * targets.shrink_mask).sum(), self.weights(targets)['mine'])}

    def weights(self, targets: Any) -> dict[str, Tensor]:
        return {'mine': targets.shrink_mask.sum()}


LOSSES = {
    'segmentation': PixelError,
    'detection': BoxError,
    'recognition': TextError,
    'table': TableError,
    'text_detection': MapError,
}


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    for family, loss in LOSSES.items():
        monkeypatch.setitem(CATALOGS[family]['losses'], 'mine', loss)


def trained(family: str, folder: Path, *words: str) -> tuple[Trainer, list[float]]:
    """A trainer after a step, and the terms and total of that."""
    recipe, *small = DEMOS[family]
    job = open_job(recipe, [(word, word) for word in (*small, *SMALL, *words)])
    trainer: Trainer = Trainer(job.recipe, job.task, folder=folder, device=torch.device('cpu'))
    trainer.train_step(next(trainer.batches()))
    trainer.read_numbers(keep=0)
    return trainer, trainer.numbers.logged[-1]


@pytest.mark.parametrize('family', FAMILIES)
def test_a_foreign_loss_trains_a_step_also_in_micro_batches(family: str, tmp_path: Path) -> None:
    for micro_batches in (1, 2):
        trainer, values = trained(family, tmp_path, 'loss=[mine]', f'train.micro_batches={micro_batches}')
        assert trainer.with_loss.names == ('mine',)
        assert values[-1] > 0 and math.isfinite(values[-1])


def test_a_foreign_loss_of_pixels_can_be_mixed_and_is_logged_by_its_name(tmp_path: Path) -> None:
    mixture = '{name: mixed, losses: [mine, dice, mine], coefficients: [1, 0.5, 2]}'
    trainer, values = trained('segmentation', tmp_path, f'loss=[{mixture}]')
    assert trainer.with_loss.names == ('mine', 'dice', 'mine.2')
    assert values[2] == pytest.approx(2 * values[0])


@pytest.mark.parametrize('family', FAMILIES)
def test_a_loss_without_the_method_weights_is_refused_at_the_start(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        heads = frozenset({'ctc'})

        def __call__(self, *parts: Any) -> Any:
            raise NotImplementedError

    monkeypatch.setitem(CATALOGS[family]['losses'], 'bare', Bare)
    recipe, *small = DEMOS[family]
    with pytest.raises(ConfigError, match=r'loss: Bare has no method `weights`; docs/extending\.md lists what a loss has'):
        open_job(recipe, [(word, word) for word in (*small, 'loss=[bare]', 'loss_coefficients=[]')])


def test_weights_that_name_other_terms_than_the_loss_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableError, 'weights', lambda self, targets: {'mine': torch.tensor(2), 'yours': torch.tensor(1)})
    message = r'gives the terms mine, but its method `weights` the weights of mine, yours; both must name the same terms'
    with pytest.raises(ValueError, match=message):
        trained('table', tmp_path, 'loss=[mine]', 'train.micro_batches=2')
