"""The terms of a detection loss and its assigner are chosen one by one, also from a plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.config.arguments import PLUGINS
from phalanx.config.read import ConfigError, to_plain
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.families.catalog import CATALOGS
from phalanx.parallel.step import WholeStep

PLUGIN = """
from dataclasses import dataclass

import torch
from torchvision.ops import distance_box_iou_loss

from phalanx.families.detection.loss import Assigned, DetectionLoss
from phalanx.families.task import Term


@dataclass(frozen=True, kw_only=True)
class DIoU(DetectionLoss):
    weight: float = 2.0

    def __call__(self, raw, truths, assigned):
        image, anchor, score = assigned.positives
        losses = distance_box_iou_loss(raw.boxes[image, anchor], assigned.true_boxes(truths))
        return {'diou': Term(self.weight * (losses * score).sum(), score.sum(), 1.0)}


class First:
    '''The first anchor answers for the first box of its image.'''

    def __call__(self, raw, truths, whole):
        answers = torch.zeros(raw.logits.shape[:2], dtype=torch.bool)
        answers[:, 0] = truths.exist[:, 0]
        return Assigned(answers, torch.zeros_like(answers, dtype=torch.int64), answers.float(), 1)


PLUGIN = {'detection': {'losses': {'diou': DIoU}, 'assigners': {'first': First}}}
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / 'diou_and_first.py').write_text(PLUGIN)
    monkeypatch.setenv(PLUGINS, str(tmp_path / 'diou_and_first.py'))
    kinds = ('losses', 'assigners')
    before = [dict(CATALOGS['detection'][kind]) for kind in kinds]
    yield
    os.environ.pop(PLUGINS, None)
    for kind, known in zip(kinds, before, strict=True):
        CATALOGS['detection'][kind].clear()
        CATALOGS['detection'][kind].update(known)


def terms(*assignments: str, epoch: int = 0) -> dict[str, tuple[float, float]]:
    """Total and weight of each term of the same two images."""
    job = open_job('ppyoloe_digits', [(text, text) for text in ('data.size=[64,64]', *assignments)])
    torch.manual_seed(0)
    model, data = job.task.model(), job.task.dataset('train')
    batch = job.task.collate([data[Draw(number, 0, 0, 0)] for number in range(2)])
    found = job.task.loss(job.task.outputs(model, batch), batch, WholeStep(epoch=epoch, epochs=12.0))
    return {name: (term.total.item(), term.weight.item()) for name, term in found.items()}


@pytest.mark.parametrize('epoch', [3, 4])
@pytest.mark.parametrize(('options', 'classes'), [('', 'varifocal'), ('use_varifocal: false, ', 'quality_focal')])
def test_the_loss_of_ppyoloe_is_the_list_of_its_terms(epoch: int, options: str, classes: str) -> None:
    whole = terms(f'loss={{name: task_aligned, {options}static_assigner_epochs: 4, top_k: 5, dfl_weight: 2}}', epoch=epoch)
    listed = terms(
        f'loss=[{classes}, giou, {{name: dfl, weight: 2}}]',
        'assigner={name: atss_then_task_aligned, static_epochs: 4, top_k: 5}',
        epoch=epoch,
    )
    assert listed == whole
    assert whole['iou'][1] > 0


def test_without_an_assigner_terms_take_the_schedule_of_ppyoloe() -> None:
    listed, static = terms('loss=[varifocal, giou, dfl]'), terms('loss=[varifocal, giou, dfl]', 'assigner=atss')
    assert listed == static == terms('loss=task_aligned')
    assert static != terms('loss=[varifocal, giou, dfl]', 'assigner=task_aligned')


def test_a_term_and_an_assigner_of_a_plugin_stand_beside_those_of_the_package(plugin: None) -> None:
    found = terms('loss=[varifocal, {name: diou, weight: 3}, dfl]', 'assigner=first', 'loss_coefficients=[1, 0.5, 1]')
    assert list(found) == ['cls', 'diou', 'dfl']
    assert [weight for _, weight in found.values()] == [2.0] * 3  # one anchor of each image
    assert 0 < found['diou'][0] <= 3 * 0.5 * 2 * 2  # 1 - DIoU of a box is below 2


def test_an_assigner_beside_options_of_another_one_is_refused() -> None:
    with pytest.raises(ConfigError, match='assigner: the loss has options of an assigner of its own; leave them out'):
        open_job('ppyoloe_digits', [('loss.top_k=5', ''), ('assigner=atss', '')])
    with pytest.raises(ConfigError, match='loss: its entries have different assigners of their own'):
        open_job('ppyoloe_digits', [('loss=[task_aligned, {name: task_aligned, top_k: 5}]', '')])


def test_what_is_no_detection_loss_is_refused_before_the_start(plugin: None) -> None:
    class Mine:
        def __call__(self, raw: Any, boxes: Any, classes: Any, whole: WholeStep) -> Any: ...
        def weights(self, boxes: Any, classes: Any) -> None: ...

    CATALOGS['detection']['losses']['mine'] = Mine
    with pytest.raises(ConfigError, match='loss: Mine must extend DetectionLoss of phalanx'):
        open_job('ppyoloe_digits', [('loss=mine', '')])


def test_null_is_no_assigner_and_a_wrong_name_gets_the_nearest() -> None:
    assert to_plain(open_job('ppyoloe_digits', [('assigner=null', '')]).resolved)['assigner'] is None
    with pytest.raises(ConfigError, match=r"assigner.name: 'ats' is not one of atss, .*did you mean 'atss'\?"):
        open_job('ppyoloe_digits', [('assigner=ats', '')])
