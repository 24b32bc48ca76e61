"""The promises for every network of every family: a new line in a catalog is a new test here.

The distribution of a step is compared in float64, where it must not show at all. In float32 it shows in the last bits, and a
freshly drawn network blows these up within a few steps, so float32 runs are compared on their first steps alone.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args, get_origin

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch._dynamo.utils import counters

from doubled import InDouble
from phalanx.config.bind import key_types
from phalanx.data.samples import Draw
from phalanx.deploy.export import Options, export
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.families.catalog import CATALOGS, FAMILIES
from phalanx.nn import stochastic
from phalanx.parallel import dist, norms
from phalanx.parallel.step import WholeStep
from running import IN_TURN, as_ranks, both_ranks, losses, made_once, run_here

# Three samples are shared as two and one.
SMALL = (
    'train.global_batch_size=3',
    'train.workers=0',
    'train.channels_last=false',
    'optimizer={name: sgd, lr: 0.01, momentum: 0.9}',  # what a step moves is the gradient itself
    'schedule={name: constant}',
    'ema=null',
    'evaluate.batch_size=2',
    'report.every=1',
    'report.pictures=1',
    'device=cpu',
)
# The demo of each family, small. Its data set has what is random: augmentation, sizes that change from step to step.
DEMOS: dict[str, tuple[str, ...]] = {
    'segmentation': (
        'pp_liteseg_digits',
        'data={name: digit_scenes, train_scenes: 7, eval_scenes: 5, size: [32, 64], digit_height: [16, 24]}',
        'transforms=[random_flip, random_distort]',
    ),
    'detection': (
        'ppyoloe_digits',
        'data={name: digit_scenes, train_scenes: 4, eval_scenes: 5, size: [64, 96], digit_height: [24, 44]}',
        'transforms=[random_expand, random_crop, random_flip, {name: batch_random_resize, sizes: [64, 96]}]',
        'loss.static_assigner_epochs=1',  # from the second step on anchors are assigned by what the network says
        'nms={score_threshold: 0}',
    ),
    'recognition': (
        'crnn_digits',
        'data={name: digit_lines, train_lines: 7, eval_lines: 5, digits: [1, 2], digit_height: [20, 32]}',
        'transforms=[rec_aug]',
        'train_image_sizes=[[32, 64], [32, 48]]',
    ),
    'text_detection': (
        'db_pages',
        'data={name: drawn_pages, train_pages: 7, eval_pages: 5, page_size: [64, 96], lines: [1, 2], heights: [12, 20]}',
        'transforms=[random_flip, {name: random_rotate, degrees: [-10, 10]}, {name: random_crop, crop_size: [64, 96]}]',
    ),
    'table': (
        'slanet_rendered',
        'data={name: rendered_tables, train_tables: 7, eval_tables: 5, rows: [1, 3], columns: [1, 2]}',
        'image_size=64',
        'max_length=60',
    ),
}
# What an option of a network goes with. Those of DeepLabv3+ are tried on its lightest backbone: they are the same on each.
LIGHT = {'backbone': 'mobilenet_v2'}
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    **dict.fromkeys((('deeplabv3p', 'align_corners'), ('deeplabv3p', 'decoder'), ('deeplabv3p', 'pyramid')), LIGHT)
}
# Choices that make a network only deeper or wider: their smallest value and the next stand for all.
ONLY_SIZES = {(name, 'size') for name in ('ppyoloe', 'dfine', 'deimv2', 'rtdetr', 'rtdetrv2')}
# Backbones that a network was published on, beside its default, and one of another network and of timm each.
BACKBONES_OF: dict[str, tuple[Any, ...]] = {
    'pp_liteseg': ('stdc2', {'name': 'timm_backbone', 'model': 'test_resnet'}),
    'segformer': ('mit_b1',),
    'deeplabv3p': ('resnet50_vd', 'mobilenet_v2', {'name': 'timm_backbone', 'model': 'test_convnext', 'drop_path': 0.3}),
    'lraspp': ({'name': 'mobilenet_v3', 'scale': 0.35},),
    'db': (
        *({'name': 'mobilenet_v3', 'squeeze': False}, 'resnet18_vd', 'resnet50_vd', 'pp_lcnet_v3', 'pp_lcnet_v4'),
        *({'name': 'pp_lcnet_v3', 'merged': True}, {'name': 'timm_backbone', 'model': 'test_efficientnet'}),
    ),
    'crnn': ({'name': 'mobilenet_v3', 'size': 'small'}, 'resnet34_vd'),
    'svtr_lcnetv3': ({'name': 'pp_lcnet_v3', 'merged': True},),
    'ppyoloe': ({'name': 'timm_backbone', 'model': 'test_vit'},),
}
# What else a network needs: a loss for each output, or another size of images.
NEEDS: dict[str, tuple[str, ...]] = {
    'pp_liteseg': ('loss=[{name: ohem, min_kept_per_sample: 500}, cross_entropy, dice]',),
    'unet': ('loss=[dice]',),
    'ocrnet': ('loss=[{name: mixed, losses: [cross_entropy, lovasz], coefficients: [0.8, 0.2]}, cross_entropy]',),
    'segformer': ('loss=[cross_entropy]',),
    'deeplabv3p': ('loss=[lovasz]',),
    'lraspp': ('loss=[lovasz]',),
    'svtr_lcnet': ('loss={name: multi}', 'image_size=[48, 64]', 'train_image_sizes=[[48, 64], [48, 48]]'),
    'db': ('model.neck_channels=24',),
    'svtr_lcnetv3': ('loss=[ctc, nrtr]', 'model.nrtr_size=32', 'image_size=[48, 64]', 'train_image_sizes=[[32, 64], [48, 64]]'),
    'dfine': ('loss={name: dfine}', 'model.queries=20', 'model.decoder_layers=2'),
    'deimv2': ('loss={name: rtdetr, classes: matchability}', 'model.queries=20', 'model.decoder_layers=2'),
    **dict.fromkeys(('rtdetr', 'rtdetrv2'), ('loss={name: rtdetr}', 'model.queries=20', 'model.decoder_layers=2')),
    'svtr_lcnetv4': ('loss=[ctc]', 'image_size=[48, 64]', 'train_image_sizes=[[32, 64], [48, 64]]'),
    'conv_lcnetv4': ('loss=[ctc]', 'image_size=[48, 64]', 'train_image_sizes=[[32, 64], [48, 64]]'),
}
DISTILLED = (
    'model={name: svtr_lcnet, sar_size: 32}',
    'networks={teacher: {name: svtr_lcnet, sar_size: 32}}',
    'between=[{name: dml, output: ctc}, {name: dml, output: sar}, {name: feature_distance, output: features}]',
)


class Case(NamedTuple):
    """A network, and how it is trained here."""

    name: str
    family: str
    sets: tuple[str, ...]
    is_usual: bool  # with its published options

    def recipe(self, *more: str) -> tuple[str, ...]:
        demo, *sets = DEMOS[self.family]
        return (demo, '--set', *SMALL, *sets, *self.sets, *more)


def cases() -> Iterator[Case]:
    """Every network with its published options, then with each other value of every option that is a choice."""
    for family in FAMILIES:
        for name, build in CATALOGS[family]['models'].items():
            usual, changes = choices(name, build)
            for changed in ({}, *changes):
                with_it = {key: value for option in changed for key, value in TOGETHER.get((name, option), {}).items()}
                model = 'model=' + json.dumps({'name': name, **usual, **changed, **with_it})
                words = [name, *(f'{option}={value}' for option, value in changed.items())]
                yield Case(' '.join(words), family, (model, *NEEDS.get(name, ())), not changed)
    yield Case('distillation', 'recognition', (*NEEDS['svtr_lcnet'], *DISTILLED), True)


def choices(name: str, build: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The published values of the options of a network that are choices, and each other value."""
    usual, changes = {}, []
    for option, kind in key_types(build).items():
        values = (False, True) if kind is bool else get_args(kind) if get_origin(kind) is Literal else ()
        if values:
            usual[option] = inspect.signature(build).parameters[option].default
            others = [value for value in values if value != usual[option]]
            changes += [{option: value} for value in (others[:1] if (name, option) in ONLY_SIZES else others)]
    return usual, [*changes, *({'backbone': backbone} for backbone in BACKBONES_OF.get(name, ()))]


CASES = list(cases())
# Images that differ in size are filled up to the largest of the whole step: norms, and what is pooled over an image, see that.
SIZES = next(case for case in CASES if case.family == 'detection')
SIZES = SIZES._replace(name='images of different sizes', sets=(*SIZES.sets, 'transforms=[random_expand, random_crop]'))
# Of each family, those that have the most that could go wrong: hard pixels of a whole step, values, channels and paths that are
# dropped, targets assigned by outputs, several losses. The others are the same code but for their layers.
# PP-LiteSeg trains on two ranks in test_same_training.py, the distillation below.
FEW = {'segformer', 'ppyoloe plus=True', SIZES.name, 'db', 'slanet'}
TRACED = {'db'}


def parameters(cases: Iterable[Case], few: set[str]) -> list[Any]:
    """The cases as parameters of a test; those that are not among the few are long."""
    return [pytest.param(case, id=case.name, marks=() if case.name in few else pytest.mark.long) for case in cases]


# With norms of its own each rank needs two samples: some norm maps that were pooled to one value.
SYNCS = {'global': ('train.steps=1',), 'off': ('train.steps=2', 'norm_sync=off', 'train.global_batch_size=4')}


@dataclass(frozen=True)
class Trained:
    losses: Tensor  # float64 [steps, terms + 1]
    weights: dict[str, Tensor]

    def assert_same(self, other: Self) -> None:
        torch.testing.assert_close(self.losses, other.losses, rtol=1e-10, atol=1e-12)
        assert self.weights.keys() == other.weights.keys()
        for name, value in self.weights.items():
            torch.testing.assert_close(
                value, other.weights[name], rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f'{name}: {text}'
            )


def trained(case: Case, folder: Path, *sets: str) -> Trained:
    """Losses and weights of a few steps in float64, on the ranks of this process group."""
    demo, _, *own = case.recipe(*sets)
    job = open_job(demo, [(text, text) for text in own], folder)
    trainer: Trainer = Trainer(job.recipe, InDouble(job.task), folder=folder, device=torch.device('cpu'))
    for batch in trainer.batches():
        trainer.train_step(batch)
        trainer.progress.step += 1
    trainer.read_numbers(keep=0)
    trainer.evaluator.agree_on_statistics()
    return Trained(torch.tensor(trainer.numbers.logged, dtype=torch.float64), trainer.model.state_dict())


@pytest.mark.parametrize('case', parameters((case for case in CASES if case.is_usual), TRACED))
def test_every_network_is_traced_as_one_graph(case: Case, tmp_path: Path) -> None:
    """A break costs what compiling saves; torch itself breaks at recurrent layers."""
    demo, _, *own = case.recipe()
    job = open_job(demo, [(text, text) for text in own], tmp_path)
    model, data = job.task.model(), job.task.dataset('train')
    batch = job.task.align(job.task.collate([data[Draw(index, 0, 0, 0)] for index in range(2)]), WholeStep(samples=2))
    norms.synchronise(model, 'off', None)
    keys = stochastic.SampleKeys()
    stochastic.tie(model, keys)
    torch.compiler.reset()
    counters.clear()
    keys.begin(stochastic.sample_keys(0, 0, torch.arange(2)))
    job.task.outputs(torch.compile(model.train(), backend='eager'), batch)
    breaks = [reason for reason in counters['graph_break'] if not re.search('LSTM|GRU|RNN', reason)]
    assert not breaks
    assert counters['stats']['unique_graphs'] >= 1


@pytest.mark.parametrize('case', parameters((case for case in CASES if case.is_usual), set()))
def test_every_network_is_exported(case: Case, tmp_path: Path) -> None:
    """Without the comparison, which a network that has not been trained may fail by rounding."""
    demo, _, *own = case.recipe()
    job = open_job(demo, [(text, text) for text in own], tmp_path)
    save_file(job.task.model().state_dict(), tmp_path / 'drawn.safetensors')
    options = Options(weights=tmp_path / 'drawn.safetensors', dynamic=(), check=False)
    session = onnxruntime.InferenceSession(export(job, tmp_path / 'model.onnx', options).file)
    (images,) = session.get_inputs()
    outputs = session.run(None, {images.name: np.zeros(images.shape, np.float32)})
    assert all(np.isfinite(output).all() for output in outputs)


def test_every_family_has_its_demo_here() -> None:
    assert DEMOS.keys() == FAMILIES.keys()


def as_rank(rank: int, folder: Path, cases: Sequence[Case]) -> None:
    """Train each network as one of two ranks."""
    torch.set_num_threads(1)
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': '2', 'PHALANX_INIT_METHOD': f'file://{folder}/rendezvous'}
    dist.join(torch.device('cpu'))
    for case in cases:
        for sync in SYNCS:
            found = trained(case, folder, *SYNCS[sync])
            if rank == 0:
                torch.save((found.losses, found.weights), folder / f'{case.name} {sync}')
    gc.collect()  # DDP lets go of the process group
    dist.leave()


@pytest.fixture(scope='session')
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case, str], Trained]:
    """The training of a case on two ranks, which train the few in one start and all others, in minutes, in another."""

    def on_two_ranks(case: Case, sync: str) -> Trained:
        is_few = case.name in FEW
        cases = [other for other in (*CASES, SIZES) if (other.name in FEW) == is_few]
        folder = made_once(
            tmp_path_factory, f'two_ranks_{"few" if is_few else "others"}', lambda folder: as_ranks(2, as_rank, folder, cases)
        )
        return Trained(*torch.load(folder / f'{case.name} {sync}'))

    return on_two_ranks


@pytest.mark.parametrize('case', parameters((*CASES, SIZES), FEW))
def test_two_ranks_train_like_one(case: Case, two_ranks: Callable[[Case, str], Trained], tmp_path: Path) -> None:
    two_ranks(case, 'global').assert_same(trained(case, tmp_path, *SYNCS['global']))


@pytest.mark.parametrize('case', parameters((*CASES, SIZES), FEW))
def test_two_micro_batches_train_like_two_ranks(case: Case, two_ranks: Callable[[Case, str], Trained], tmp_path: Path) -> None:
    """A micro-batch is a virtual rank, where each has norms of its own: running statistics are the mean of theirs, too."""
    two_ranks(case, 'off').assert_same(trained(case, tmp_path, *SYNCS['off'], 'train.micro_batches=2'))


# One network of each family goes all the way of the command, in float32: those that have the most that could go wrong.
ALL_THE_WAY = {
    'segmentation': 'segformer',  # drops values, channels and paths
    'detection': 'ppyoloe plus=True',
    'recognition': 'distillation',
    'text_detection': 'db',
    'table': 'slanet',
}


def all_the_way(family: str) -> tuple[str, ...]:
    case = next(case for case in CASES if case.name == ALL_THE_WAY[family])
    return case.recipe('train.steps=5', 'optimizer={name: adamw, lr: 1.0e-4}')


FEW_FAMILIES = {'detection', 'recognition'}


@pytest.fixture(scope='session')
def runs_of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a run of two steps of a family, trained and evaluated by two ranks; FAMILY.json has their evaluation."""

    def of_family(family: str) -> Path:
        is_few = family in FEW_FAMILIES
        families = [other for other in FAMILIES if (other in FEW_FAMILIES) == is_few]

        def train(folder: Path) -> None:
            commands: list[tuple[str, ...]] = []
            for each in families:
                commands += [('train', *all_the_way(each), 'train.until=2', '--save_dir', each), ('eval', each, '--json')]
            output = both_ranks(IN_TURN, folder, json.dumps(commands))
            evaluations = [line for line in output.splitlines() if line.startswith('{')]
            for each, evaluation in zip(families, evaluations, strict=True):
                (folder / f'{each}.json').write_text(evaluation)

        return made_once(tmp_path_factory, f'runs_of_two_ranks_{"few" if is_few else "others"}', train)

    return of_family


@pytest.mark.parametrize(
    'family', [pytest.param(each, marks=() if each in FEW_FAMILIES else pytest.mark.long) for each in FAMILIES]
)
def test_a_run_keeps_all_promises(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    runs_of_two_ranks: Callable[[str], Path],
    family: str,
) -> None:
    """A stop and a resume, loader workers and a second rank change nothing, and evaluation counts each sample once."""
    monkeypatch.chdir(tmp_path)
    recipe = all_the_way(family)
    assert run_here('train', *recipe, '--save_dir', 'whole') == 0
    expected = losses(tmp_path / 'whole')

    assert run_here('train', *recipe, 'train.workers=2', 'train.until=2', '--save_dir', 'halves') == 0
    assert run_here('train', *recipe, 'train.workers=2', '--save_dir', 'halves') == 0
    assert losses(tmp_path / 'halves') == expected
    whole, halves = (load_file(tmp_path / run / 'latest' / 'model.safetensors') for run in ('whole', 'halves'))
    assert whole.keys() == halves.keys()
    assert [name for name, value in whole.items() if not value.equal(halves[name])] == []

    by_two_ranks = runs_of_two_ranks(family)
    first, second = losses(by_two_ranks / family)
    assert first == pytest.approx(expected[0], rel=1e-6)
    assert second == pytest.approx(expected[1], rel=1e-4)  # maps of few pixels, normalised over three samples, amplify most

    capsys.readouterr()
    assert run_here('eval', str(by_two_ranks / family), '--json') == 0
    alone = json.loads(capsys.readouterr().out)
    by_two = json.loads((by_two_ranks / f'{family}.json').read_text())
    assert by_two['samples'] == 5
    assert {**by_two, 'seconds': 0} == {**alone, 'seconds': 0}
