"""Parts of one plugin, as docs/extending.md describes them, train and evaluate in every family."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from phalanx.config.arguments import PLUGINS
from phalanx.config.read import ConfigError
from phalanx.data.external import seed_global_generators
from phalanx.data.samples import Draw, SampleError
from phalanx.engine.checks import check_parts
from phalanx.engine.job import open_job
from phalanx.engine.optim import OPTIMIZERS, SCHEDULES
from phalanx.engine.plugins import OF_ALL_FAMILIES, load_plugins
from phalanx.engine.trainer import Trainer
from phalanx.families.catalog import CATALOGS, FAMILIES
from phalanx.families.segmentation.loss import PixelLoss
from phalanx.families.task import Metric, Term
from phalanx.parallel import dist
from phalanx.parallel.step import WholeStep
from phalanx.system.errors import RequestError, RunError

FILE = Path(__file__).parents[2] / 'foreign_parts.py'
SMALL = ('train.global_batch_size=4', 'train.workers=0', 'train.channels_last=false', 'ema=null', 'device=cpu')
RECIPES = {
    'segmentation': 'unet_digits',
    'detection': 'ppyoloe_digits',
    'recognition': 'crnn_digits',
    'table': 'slanet_rendered',
    'text_detection': 'db_pages',
}
DEMOS = {
    'segmentation': ('data.train_scenes=4', 'data.eval_scenes=1', 'data.size=[32,64]'),
    'detection': ('data.train_scenes=4', 'data.eval_scenes=1', 'data.size=[64,64]'),
    'recognition': ('data.train_lines=4', 'data.eval_lines=1', 'train_image_sizes=[]'),
    'table': ('data.train_tables=4', 'data.eval_tables=1', 'image_size=64', 'loss_coefficients=[]'),
    'text_detection': ('data.train_pages=4', 'data.eval_pages=1', 'data.page_size=[64,64]'),
}
# A small network and data set of the plugin, for parts of the other kinds.
OWN = {
    'segmentation': ('loss=[cross_entropy]',),
    'detection': ('transforms=[]', 'eval_transforms=[]', 'loss=[varifocal, giou, dfl]'),
    'recognition': ('train_image_sizes=[]', 'transforms=[]'),
    'table': ('image_size=64', 'max_length=20'),
    'text_detection': ('transforms=[]', 'eval_transforms=[]'),
}
USES = {  # of a kind: a part with an option, as a recipe names it
    'models': 'model={name: mine, width: 3}',
    'data': 'data={name: mine, count: 5}',
    'losses': 'loss=[mine]',
    'transforms': 'transforms=[{name: mine, amount: 9}]',
    'metrics': 'metric={name: mine, offset: 2}',
    'assigners': 'assigner={name: mine, score: 0.7}',
}
GRID = [(family, kind) for family in RECIPES for kind in ('models', 'data', 'losses', 'transforms', 'metrics')]


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the plugin; the catalogs afterwards are as before."""
    catalogs = [*OF_ALL_FAMILIES.values(), *(parts for kinds in CATALOGS.values() for parts in kinds.values())]
    before = [dict(parts) for parts in catalogs]
    monkeypatch.setenv(PLUGINS, str(FILE))
    load_plugins()
    module = sys.modules['phalanx_plugin_foreign_parts']
    module.CALLS.clear()
    yield module
    for parts, known in zip(catalogs, before, strict=True):
        parts.clear()
        parts.update(known)


def open_task(family: str, *assignments: str) -> Any:
    return open_job(RECIPES[family], [(text, '--set') for text in (*SMALL, *assignments)])


def train_step(job: Any, folder: Path) -> tuple[Trainer, list[float]]:
    """A trainer after one step, and the logged terms and total of that step."""
    trainer: Trainer = Trainer(job.recipe, job.task, folder=folder, device=torch.device('cpu'))
    trainer.train_step(next(trainer.batches()))
    trainer.read_numbers(keep=0)
    values = trainer.numbers.logged[-1]
    assert math.isfinite(values[-1])
    return trainer, values


def evaluate(trainer: Trainer) -> dict[str, float]:
    """The numbers of the metric of the recipe over one batch."""
    task = trainer.task
    model, dataset, metric = trainer.model.eval(), task.dataset('eval'), task.metric()
    batch = task.collate([dataset[Draw(index)] for index in range(2)])
    with torch.no_grad():
        metric.update(task.predict(model, batch), batch)
    metric.gather()
    return metric.compute()


def test_the_plugin_has_a_part_of_every_kind(plugin: Any) -> None:
    for family, kinds in CATALOGS.items():
        assert plugin.PLUGIN[family].keys() == kinds.keys()
    assert plugin.PLUGIN.keys() == {*CATALOGS, *OF_ALL_FAMILIES}


@pytest.mark.parametrize(('family', 'kind'), [*GRID, ('detection', 'assigners')])
def test_a_foreign_part_trains_a_step_and_is_evaluated(family: str, kind: str, plugin: Any, tmp_path: Path) -> None:
    job = open_task(family, 'model=mine', 'data=mine', *OWN[family], 'loss_coefficients=[]', USES[kind])
    trainer, _ = train_step(job, tmp_path)
    numbers = evaluate(trainer)
    assert plugin.CALLS[f'{family}.{kind}'] > 0
    if kind == 'data':
        assert len(trainer.task.dataset('train')) == 5
    if kind == 'metrics':
        assert numbers == {'samples': 2 + 2}


def test_a_foreign_loss_learns_from_a_foreign_teacher(plugin: Any, tmp_path: Path) -> None:
    pair = ('model={name: ppyoloe, size: n}', 'networks={teacher: {name: ppyoloe, size: t}}', 'from_teacher=[mine]')
    job = open_task('detection', 'data=mine', *OWN['detection'], 'loss=[mine]', 'loss_coefficients=[]', *pair)
    trainer, _ = train_step(job, tmp_path)
    assert trainer.with_loss.names == ('mine_student', 'as_teacher_student')
    assert plugin.CALLS['detection.teacher_losses'] > 0


def test_a_foreign_detector_as_teacher_is_refused_with_the_reason(tmp_path: Path) -> None:
    job = open_task('detection', 'networks={teacher: mine}', 'from_teacher=[mine]')
    with pytest.raises(
        ValueError, match=r'from_teacher: it compares the maps of two PP-YOLOE networks; the teacher is a Detector'
    ):
        train_step(job, tmp_path)


@pytest.mark.parametrize('family', ['segmentation', 'detection', 'text_detection', 'table'])
def test_networks_take_a_foreign_backbone(family: str, plugin: Any, tmp_path: Path) -> None:
    network = {'segmentation': 'deeplabv3p', 'detection': 'ppyoloe', 'text_detection': 'db', 'table': 'slanet'}[family]
    model = f'model={{name: {network}, backbone: {{name: mine, depth: 4}}}}'
    train_step(open_task(family, model, 'data=mine', *OWN[family], 'loss_coefficients=[]'), tmp_path)
    assert plugin.CALLS['backbones'] > 0


def test_a_recipe_takes_a_foreign_tracker(plugin: Any) -> None:
    job = open_task('segmentation', 'report.trackers=[{name: mine, prefix: a}]')
    (build,) = job.recipe.report.tracker_builders().values()
    assert type(build()) is plugin.Recorder and build().prefix == 'a'


def test_a_foreign_optimizer_follows_a_foreign_schedule(plugin: Any, tmp_path: Path) -> None:
    parts = ('optimizer={name: mine, lr: 0.5, counts: true}', 'schedule={name: mine, every: 1}')
    job = open_task('segmentation', *DEMOS['segmentation'], 'model=mine', 'loss=[cross_entropy]', *parts)
    check_parts(job, 1)
    plugin.CALLS.clear()
    trainer, _ = train_step(job, tmp_path)
    assert type(trainer.optimizer) is plugin.Signs and plugin.CALLS['optimizers'] == 1
    assert [trainer.schedule(step) for step in (0, 1, 2)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize('family', FAMILIES)
def test_a_foreign_loss_trains_shipped_networks_also_in_micro_batches(family: str, tmp_path: Path) -> None:
    for micro_batches in (1, 2):
        job = open_task(family, *DEMOS[family], 'loss=[mine]', f'train.micro_batches={micro_batches}')
        trainer, values = train_step(job, tmp_path)
        assert trainer.with_loss.names == ('mine',)
        assert values[-1] > 0


def test_a_foreign_loss_of_pixels_can_be_mixed_and_is_logged_by_its_name(tmp_path: Path) -> None:
    mixture = '{name: mixed, losses: [mine, dice, mine], coefficients: [1, 0.5, 2]}'
    trainer, values = train_step(open_task('segmentation', *DEMOS['segmentation'], f'loss=[{mixture}]'), tmp_path)
    assert trainer.with_loss.names == ('mine', 'dice', 'mine.2')
    assert values[2] == pytest.approx(2 * values[0])


@pytest.mark.parametrize('family', FAMILIES)
def test_a_loss_without_the_method_weights_is_refused_at_the_start(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        heads = frozenset({'ctc'})

        def __call__(self, *parts: Any) -> Any:
            raise NotImplementedError

    monkeypatch.setitem(CATALOGS[family]['losses'], 'bare', Bare)
    with pytest.raises(ConfigError, match=r'loss: Bare has no `weights`.*; docs/extending\.md lists what it needs'):
        open_task(family, *DEMOS[family], 'loss=[bare]', 'loss_coefficients=[]')


def test_weights_that_name_other_terms_than_the_loss_end_the_run(
    tmp_path: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {'mine': torch.tensor(2), 'yours': torch.tensor(1)}
    monkeypatch.setattr(plugin.TableError, 'weights', lambda self, targets: two)
    message = r'returns the terms mine, but its method `weights` those of mine, yours; both must name the same terms'
    with pytest.raises(RunError, match=message):
        train_step(open_task('table', *DEMOS['table'], 'loss=[mine]', 'train.micro_batches=2'), tmp_path)


class Layer(nn.Module):
    """One convolution as a network, with `more` classes than the data set and, if `spare`, a parameter that is not used."""

    num_outputs = 1

    def __init__(self, num_classes: int, *, more: int = 0, spare: bool = False) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, num_classes + more, 1)
        self.spare = nn.Linear(2, 2) if spare else None

    def forward(self, images: Tensor) -> list[Tensor]:
        return [self.layer(images)]


class Brightness(PixelLoss):
    """Sum of all logits, returned in the wrong `form`."""

    def __init__(self, *, form: str = 'sum') -> None:
        self.form = form

    def __call__(self, logits: Tensor, labels: Tensor, whole: WholeStep) -> Any:
        total, images = logits.sum(), torch.tensor(float(len(logits)))
        return {
            'sum': Term(total, images),
            'tensor': total,
            'map': Term(logits, images),
            'int': Term(total, len(logits)),  # type: ignore[arg-type]
            'pixels': Term(total, torch.tensor(labels.numel())),
        }[self.form]


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGS['segmentation']['models'], 'layer', Layer)
    monkeypatch.setitem(CATALOGS['segmentation']['losses'], 'brightness', Brightness)


def open_layer(*assignments: str, options: str = '', loss: str = '{name: brightness}') -> Any:
    return open_task('segmentation', *DEMOS['segmentation'], f'model={{name: layer{options}}}', f'loss=[{loss}]', *assignments)


@pytest.mark.usefixtures('layer')
@pytest.mark.parametrize('micro_batches', [1, 2])
@pytest.mark.parametrize(
    ('options', 'form', 'message'),
    [
        ('', 'tensor', r'loss: brightness must be a Term\(total, weight\), .*; it is a tensor \[\] \(docs/extending'),
        ('', 'map', r'loss: the total of brightness must be a tensor without dimensions; it is a tensor \[\d, 11, 32, 64\]'),
        ('', 'int', r'loss: the weight of brightness must be a tensor without dimensions; it is of type int'),
        ('', 'pixels', r'the weight of brightness is \d+, but its method `weights` returns \d for it; return the same number'),
        (', spare: true', 'sum', 'model: spare.weight, spare.bias took no part in the loss of the first step'),
        (', more: 1', 'sum', r'must return a list of 1 logits \[\d, 11, 32, 64\]; it returned 1 of \[\d, 12, 32, 64\]'),
    ],
)
def test_the_first_step_refuses_what_a_later_one_would_get_wrong(
    options: str, form: str, message: str, micro_batches: int, tmp_path: Path
) -> None:
    loss = f'{{name: brightness, form: {form}}}'
    with pytest.raises(RunError, match=message):
        train_step(open_layer(f'train.micro_batches={micro_batches}', options=options, loss=loss), tmp_path)


@pytest.mark.usefixtures('layer')
def test_a_part_without_what_its_family_calls_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGS['segmentation']['models'], 'bare', lambda num_classes: nn.Conv2d(3, num_classes, 1))
    monkeypatch.setitem(CATALOGS['segmentation']['data'], 'bare', lambda **keys: keys)
    monkeypatch.setitem(CATALOGS['segmentation']['metrics'], 'bare', list)
    with pytest.raises(RequestError, match=r'model: Conv2d has no `num_outputs`; docs/extending.md lists what it needs'):
        check_parts(open_layer('model={name: bare}'), 1)
    with pytest.raises(RequestError, match=r'data: dict has no `split` and no `class_names`; docs/extending.md lists'):
        check_parts(open_layer('data={name: bare}'), 1)
    with pytest.raises(ConfigError, match='metric: list has no `names` and no `tie_breakers` and no `update`'):
        open_layer('metric=bare')


class Forgetful(torch.optim.SGD):
    """An optimizer with a count of steps outside its state."""

    steps = 0

    def __init__(self, groups: Any, *, lr: float) -> None:
        super().__init__(groups, lr=lr)

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        for group in self.param_groups:
            group['lr'] /= self.steps
        return super().step(closure)


class Unsteady(torch.optim.SGD):
    """An optimizer whose steps spoil the weights."""

    def __init__(self, groups: Any, *, lr: float) -> None:
        super().__init__(groups, lr=math.inf)


class Averaging(torch.optim.SGD):
    """An optimizer with other weights for evaluation."""

    def __init__(self, groups: Any, *, lr: float) -> None:
        super().__init__(groups, lr=lr)

    def train(self) -> None: ...
    def eval(self) -> None: ...


def with_closure(groups: Any, *, lr: float) -> Any:
    return torch.optim.LBFGS(next(iter(groups))['params'], lr=lr)


def without_factors(groups: Any, *, lr: float) -> Any:
    return torch.optim.SGD([weight for group in groups for weight in group['params']], lr=lr)


def without_biases(groups: Any, *, lr: float) -> Any:
    return torch.optim.SGD([{**group, 'params': [w for w in group['params'] if w.ndim > 1]} for group in groups], lr=lr)


def of_torch_alone(groups: Any, *, lr: float) -> Any:
    return torch.optim.Muon(groups, lr=lr)


@pytest.mark.usefixtures('layer')
@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (Forgetful, r'after its state was saved and loaded, its next step differs; state_dict\(\) must hold all its state'),
        (Unsteady, 'it makes weights that are not finite'),
        (Averaging, r'it trains and evaluates different weights \(methods train and eval\), which Phalanx does not'),
        (with_closure, 'its defaults need `lr`, and its groups must keep the key `lr_factor` of the groups that it gets'),
        (without_factors, 'its groups must keep the key `lr_factor`'),
        (without_biases, 'its groups must hold each parameter of the groups that it gets, once'),
        (of_torch_alone, 'Muon only supports 2D parameters'),
        (lambda groups, **keys: keys, r'it must be a torch\.optim\.Optimizer, got dict'),
    ],
)
def test_an_optimizer_of_a_plugin_is_tried_before_the_start(build: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, 'other', build)
    keys = ', lr: 0.1' if '<lambda>' not in build.__qualname__ else ''
    with pytest.raises(RequestError, match=f'^optimizer: a trial of two steps failed: .*{message}.* \\(docs/extending.md, Opt'):
        check_parts(open_layer(f'optimizer={{name: other{keys}}}'), 1)


@pytest.mark.usefixtures('layer')
def test_options_of_a_plugin_may_be_negative_but_not_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    def adafactor(groups: Any, *, lr: float, beta2_decay: float = -0.8) -> Any:
        return torch.optim.Adafactor(groups, lr=lr, beta2_decay=beta2_decay)

    monkeypatch.setitem(OPTIMIZERS, 'other', adafactor)
    check_parts(open_layer('optimizer={name: other, lr: 0.1, beta2_decay: -0.9}'), 1)
    with pytest.raises(ConfigError, match=r'optimizer: lr cannot be negative, got -0\.1'):
        open_layer('optimizer={name: other, lr: -0.1}')


RATES = [(5, 'None'), (lambda step: None, 'None'), (lambda step: math.nan, 'nan'), (lambda step: -0.1, '-0.1')]


@pytest.mark.parametrize(('schedule', 'found'), RATES)
def test_a_schedule_without_a_rate_is_refused(schedule: Any, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, 'other', lambda lr, length, steps_per_epoch, timeline=None: schedule)
    with pytest.raises(ConfigError, match=rf'schedule: must be a function of the step .* at least 0; for step 0 it is {found}'):
        open_task('segmentation', 'schedule=other')


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (lambda lr, length, steps_per_epoch: lambda step: lr, r'TypeError: .*takes 3 positional arguments but 4 were given'),
        (lambda lr, length, steps_per_epoch, timeline: lambda step: (lr,)[step], 'IndexError: '),
    ],
)
def test_a_schedule_that_fails_is_refused_before_the_start(build: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, 'other', build)
    with pytest.raises(ConfigError, match=f'schedule: a trial for a run of 1000000 steps failed: {message}'):
        open_task('segmentation', 'schedule=other')


def test_a_schedule_gets_the_timeline_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(lr: float, length: int, steps_per_epoch: float, timeline: Any = None) -> Any:
        return lambda step: lr if step < timeline.step_of(length / 2) else lr / 2

    monkeypatch.setitem(SCHEDULES, 'other', halves)
    open_task('segmentation', 'schedule=other')


class Samples(Metric):
    """Number of samples."""

    names = ('samples',)

    def __init__(self, class_names: Sequence[str], *, returns: str = 'samples') -> None:
        self.returns, self.count = returns, 0

    def update(self, prediction: Any, batch: Any) -> None:
        self.count += len(batch)

    def gather(self) -> None:
        self.count = int(dist.sum_over_ranks(torch.tensor(float(self.count))))

    def compute(self) -> dict[str, float]:
        return {self.returns: self.count}


@pytest.mark.usefixtures('layer')
def test_a_metric_inherits_what_it_does_not_define_and_is_tried_before_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(CATALOGS['segmentation']['metrics'], 'samples', Samples)
    job = open_layer('metric=samples')
    check_parts(job, 1)
    trainer, _ = train_step(job, tmp_path)
    assert evaluate(trainer) == {'samples': 2}
    with pytest.raises(RequestError, match=r"compute\(\) of Samples must return numbers by name, with 'samples'; it returned"):
        check_parts(open_layer('metric={name: samples, returns: other}'), 1)


@pytest.mark.usefixtures('layer')
def test_a_first_sample_that_cannot_be_read_does_not_end_the_trial_of_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(source: Any, draw: Draw) -> Any:
        raise SampleError('scene 0: is damaged')

    monkeypatch.setitem(CATALOGS['segmentation']['metrics'], 'samples', Samples)
    job = open_layer('metric=samples')
    monkeypatch.setattr(type(job.task.data().split('eval')), 'read', unreadable)
    check_parts(job, 1)


class Jitter:
    """Torchvision's change of brightness, which draws from torch's global generator."""

    def __init__(self, *, seeded: bool) -> None:
        self.seeded = seeded

    def __call__(self, image: Any, labels: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        with seed_global_generators(rng) if self.seeded else contextlib.nullcontext():
            changed = v2.ColorJitter(brightness=0.5)(torch.from_numpy(image).permute(2, 0, 1))
        return changed.permute(1, 2, 0).numpy(), labels


@pytest.mark.usefixtures('layer')
def test_transforms_of_plugins_must_give_the_same_image_for_the_same_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    transforms = CATALOGS['segmentation']['transforms']
    monkeypatch.setitem(transforms, 'jitter', Jitter)
    check_parts(open_layer('transforms=[{name: jitter, seeded: true}]'), 1)
    with pytest.raises(RequestError, match=r'with Jitter, train digit scene 0 is another image when it is read again; draw'):
        check_parts(open_layer('transforms=[{name: jitter, seeded: false}]'), 1)


@pytest.mark.usefixtures('layer')
@pytest.mark.parametrize(
    ('change', 'error', 'message'),
    [
        (lambda image, labels: (image / 255, labels), RequestError, r'is an image \[32, 64, 3\] of torch.float64; it must be'),
        (
            lambda image, labels: (image.transpose(2, 0, 1), labels[:3, :32]),
            RequestError,
            r'is an image \[3, 32, 64\] of torch.uint8; it must be',
        ),
        (lambda image, labels: image, RuntimeError, 'failed for train digit scene 0: ValueError: too many values to unpack'),
        (
            lambda image, labels: (image[:16], labels),
            RuntimeError,
            r'image has become \[16, 64\], but its label map \[32, 64\]',
        ),
    ],
)
def test_transforms_of_plugins_must_return_an_image_and_its_annotation(
    change: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Change:
        def __call__(self, image: Any, labels: Any, rng: Any) -> Any:
            return change(image, labels)

    monkeypatch.setitem(CATALOGS['segmentation']['transforms'], 'change', Change)
    with pytest.raises(error, match=message):
        check_parts(open_layer('transforms=[change]'), 1)
