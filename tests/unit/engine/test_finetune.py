"""Training on from weights: parts that stay as they are, and an end when nothing gets better."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from phalanx.config.read import ConfigError
from phalanx.engine.checks import check_can_freeze
from phalanx.engine.job import open_job
from phalanx.engine.optim.frozen import TemporaryFreeze, freeze
from phalanx.engine.progress import Progress
from phalanx.engine.trainer import Trainer
from phalanx.families.segmentation.models.pp_liteseg import pp_liteseg
from phalanx.parallel import norms
from phalanx.weights.checkpoint import load
from running import TINY, records, run_here


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """A file of weights for the smallest real run."""
    safetensors.torch.save_file(
        open_job(TINY[0], [(word, word) for word in TINY[2:]]).task.model().state_dict(), tmp_path / 'w.safetensors'
    )
    return f'train.init_from={tmp_path}/w.safetensors'


def test_a_frozen_part_stays_as_it_is_and_the_rest_trains(weights: str, tmp_path: Path) -> None:
    sets = [(word, word) for word in (*TINY[2:], weights, 'train.steps=2', 'train.freeze=[backbone]')]
    job = open_job(TINY[0], sets)
    trainer: Trainer = Trainer(job.recipe, job.task, folder=tmp_path, device=torch.device('cpu'))
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    for batch in trainer.batches():
        trainer.train_step(batch)
        trainer.progress.step += 1
    changed = {name for name, tensor in trainer.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and not [name for name in changed if name.startswith('backbone.')]
    inside = {id(parameter) for parameter in trainer.model.backbone.parameters()}
    assert not inside & {id(parameter) for group in trainer.optimizer.param_groups for parameter in group['params']}


def trained(words: tuple[str, ...], folder: Path, steps: int, after: Trainer | None = None) -> Trainer:
    """A run on its way to step `steps`, begun there where the run `after` ended."""
    job = open_job(TINY[0], [(word, word) for word in (*TINY[2:], *words)])
    folder.mkdir()
    device = torch.device('cpu')
    if after is None:
        trainer: Trainer = Trainer(job.recipe, job.task, folder=folder, device=device)
    else:
        after.save()
        after.saver.finish(after.progress, after.report)
        saved = load(after.checkpoints.all()[-1])
        trainer = Trainer(job.recipe, job.task, folder=folder, device=device, progress=Progress.of(saved.state, saved.step))
        trainer.restore(saved)
    for batch in trainer.batches():
        if trainer.progress.step == steps:
            break
        trainer.train_step(batch)
        trainer.progress.step += 1
    return trainer


def test_a_part_that_is_frozen_at_first_trains_afterwards_and_a_resumed_run_does_the_same(weights: str, tmp_path: Path) -> None:
    words = (weights, 'train.steps=4', 'train.freeze=[backbone]', 'train.freeze_steps=2', 'norm_sync=off')
    run = trained(words, tmp_path / 'run', 2)
    backbone = run.model.backbone.state_dict()
    original = safetensors.torch.load_file(weights.removeprefix('train.init_from='))
    assert all(torch.equal(tensor, original[f'backbone.{name}']) for name, tensor in backbone.items())
    assert not torch.equal(run.model.heads[0].classify.weight, original['heads.0.classify.weight'])

    resumed, whole = trained(words, tmp_path / 'again', 4, after=run).model, trained(words, tmp_path / 'whole', 4).model
    for name, tensor in whole.backbone.state_dict().items():
        assert torch.equal(tensor, original[f'backbone.{name}']) == name.endswith('num_batches_tracked'), name
    found = resumed.state_dict()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, found[name]), name


def test_norms_that_the_recipe_freezes_stay_frozen_after_the_first_steps() -> None:
    model = pp_liteseg(2)
    norms.freeze(model)
    held = TemporaryFreeze(model, ['backbone'], 1)
    with held.during(1):
        assert all(norm.is_frozen for norm in model.modules() if isinstance(norm, norms.BatchNorm2d))


def test_parts_that_cannot_be_frozen_temporarily_are_refused() -> None:
    with pytest.raises(ValueError, match='nothing would be trained'):
        TemporaryFreeze(pp_liteseg(2), [''], 1)
    with pytest.raises(ConfigError, match=r'freeze_steps: 5 has no effect without train\.freeze'):
        open_job('pp_liteseg_digits', [('train.freeze_steps=5', '--set')])


def test_a_pattern_freezes_all_norms_of_a_part() -> None:
    model = pp_liteseg(2)
    freeze(model, ['backbone.*.norm'])
    frozen = {name for name, module in model.named_modules() if getattr(module, 'is_frozen', False)}
    assert frozen == {name for name, _ in model.named_modules() if name.startswith('backbone.') and name.endswith('.norm')}
    still = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert still == {f'{name}.{part}' for name in frozen for part in ('weight', 'bias')}


@pytest.mark.parametrize(
    ('parts', 'message'),
    [
        (['backbon'], r"the network has no part 'backbon'; did you mean 'backbone'\? \(it has backbone, "),
        ([''], 'nothing would be trained'),
    ],
)
def test_what_cannot_be_frozen_is_reported(parts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        freeze(pp_liteseg(2), parts)


def test_random_weights_are_not_frozen() -> None:
    job = open_job('pp_liteseg_digits', [('train.freeze=[backbone]', '--set')])
    with pytest.raises(ValueError, match=r'train\.freeze needs train\.init_from: frozen parts would keep random weights'):
        check_can_freeze(job.recipe, job.task.model())


def test_a_stage_can_be_frozen_by_its_name() -> None:
    model: nn.Module = pp_liteseg(2)
    freeze(model, ['backbone.stages.0', 'backbone.stages.1'])
    frozen = {name.rsplit('.', 3)[0] for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert {'.'.join(name.split('.')[:3]) for name in frozen} <= {'backbone.stages.0', 'backbone.stages.1', 'backbone.stages'}
    assert not any(parameter.requires_grad for parameter in model.get_submodule('backbone.stages.1').parameters())
    assert all(parameter.requires_grad for parameter in model.get_submodule('backbone.stages.2').parameters())


def test_evaluations_that_are_no_better_are_counted_since_the_best() -> None:
    at = Progress()
    counts = []
    for score in (0.5, 0.5, 0.4, 0.6, 0.6):
        at.record_evaluation({'score': score}, ('score',))
        counts.append(at.no_better)
    assert counts == [0, 1, 2, 0, 1]
    assert Progress.of(asdict(at), 5).no_better == 1


def test_norms_that_are_part_of_convolutions_stay_so_and_train_in_a_resumed_run_too(weights: str, tmp_path: Path) -> None:
    """Norms as in exported networks: the first norm has no effect, and no batch's statistics give it one."""
    path = Path(weights.removeprefix('train.init_from='))
    state = safetensors.torch.load_file(path)
    name = next(name.removesuffix('.running_var') for name in state if name.endswith('.running_var'))
    folded = norms.BatchNorm2d(len(state[f'{name}.weight'])).folded()
    safetensors.torch.save_file({**state, **{f'{name}.{part}': tensor for part, tensor in folded.items()}}, path)
    words = (weights, 'train.steps=4')
    whole = trained(words, tmp_path / 'whole', 4)
    assert any('1 batch norm is folded into a convolution in the file' in note for note in whole.notes)
    resumed = trained(words, tmp_path / 'resumed', 4, after=trained(words, tmp_path / 'half', 2))
    for trainer in (whole, resumed):
        now = trainer.model.state_dict()
        assert all(now[f'{name}.{part}'].equal(folded[part]) for part in ('running_mean', 'running_var'))
        assert not now[f'{name}.weight'].equal(folded['weight'])
    for ours, theirs in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert ours.equal(theirs)


def test_a_run_that_no_longer_gets_better_ends_and_stays_ended(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a learning rate of 0 and frozen norms every evaluation is that of the first: best at the start, ended at step 2."""
    still = ('optimizer={name: sgd, lr: 0.0}', 'schedule={name: constant}', 'norm_sync=frozen')
    limits = ('train.steps=8', 'evaluate.every=1', 'evaluate.patience=2')
    words = (*TINY, weights, *still, *limits, '--save_dir', str(tmp_path / 'run'))
    assert run_here('train', *words) == 0
    assert [line['step'] for line in records(tmp_path / 'run', 'eval')] == [0, 1, 2]
    out = capsys.readouterr().out
    assert 'stopped early at step 2 of 8: 2 evaluations in a row with no better mean_iou than ' in out
    assert re.search(
        r'no evaluation was better than the initial weights: mean_iou \S+ at the start, \S+ at the end; the best', out
    )
    assert (tmp_path / 'run' / 'latest').resolve().name == 'step_0000002'
    assert run_here('train', *words) == 0
    summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
    assert (summary['steps'], summary['start']) == (2, records(tmp_path / 'run', 'eval')[0]['mean_iou'])


@pytest.mark.parametrize(
    ('words', 'owed'),
    [
        ((), True),
        (('evaluate.start=false',), False),
        (('evaluate.enabled=false',), False),
        (('train.init_part=backbone',), False),
    ],
)
def test_the_start_is_evaluated_where_a_whole_network_is_given(
    weights: str, tmp_path: Path, words: tuple[str, ...], owed: bool
) -> None:
    assert trained((weights, 'train.steps=2', *words), tmp_path / 'run', 0).needs_start_evaluation() is owed


def test_a_start_with_a_fresh_head_is_not_evaluated(weights: str, tmp_path: Path) -> None:
    file = Path(weights.removeprefix('train.init_from='))
    kept = safetensors.torch.load_file(file)
    del kept['heads.0.classify.weight']
    safetensors.torch.save_file(kept, file)
    assert not trained((weights, 'train.steps=2'), tmp_path / 'run', 0).needs_start_evaluation()
