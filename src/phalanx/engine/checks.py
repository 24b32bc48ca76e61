"""Checks before a start: data sets, network, optimizer, batch shares and initial weights."""

import copy
import io
import os
import shutil
import sys
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.data.cache import check_room
from phalanx.data.samples import Dataset, Draw, SampleError
from phalanx.engine.device import pick_device
from phalanx.engine.evaluation import numbers_of
from phalanx.engine.job import Job
from phalanx.engine.loader import Stream, check_batch
from phalanx.engine.optim import NEED_DECAY, is_shipped
from phalanx.engine.optim.frozen import freeze
from phalanx.engine.optim.groups import parameter_groups
from phalanx.engine.optim.optimizers import load_state, set_lr
from phalanx.engine.parts import Parts
from phalanx.engine.schema import Recipe
from phalanx.nn.backbones.timm_backbone import TimmBackbone, find_pretrained_backbones
from phalanx.parallel import dist
from phalanx.parallel.step import WholeStep
from phalanx.system.compiler import check_cache, use_own_cache
from phalanx.system.errors import CheckpointError, RequestError, RunError
from phalanx.weights.checkpoint import Checkpoints
from phalanx.weights.fetching import FetchError

REPEATED = 8  # samples that are read twice, after transforms of plugins


def check_parts(job: Job, world_size: int) -> Parts:
    """Build the parts that can be wrong although each key is valid: data sets, network, optimizer, batch shares. Return them.

    Raises RequestError with every problem found.
    """
    train, parts = job.recipe.train, Parts(job.recipe, job.task)
    # torch would report a missing compiler or an unsafe cache at the first step only, after all ranks have started.
    if train.compile:
        use_own_cache()
        check_cache()
    if train.compile and pick_device(job.recipe.device).type == 'cpu':
        check_compiler()

    def check_cached() -> None:
        if train.cache is not None:
            check_room(train.cache)

    def check_annotations() -> None:
        # Remarks of a data set come from its annotations, and are printed at the start of the training.
        for samples in (parts.train, parts.evaluation):
            _ = samples.notes

    def check_stream() -> None:
        size, batch = len(parts.train), train.global_batch(world_size)
        check_batch(size, batch, world_size)
        # The constructor rejects a batch with fewer samples than micro-batches over all ranks.
        Stream(size, batch, train.least_micro_batches, train.seed, 0, world_size)

    def check_network() -> None:
        model = copy.deepcopy(parts.network)  # frozen and run in training mode below; the run needs an untouched network
        check_can_freeze(job.recipe, model)
        freeze(model, train.freeze)
        groups = parameter_groups(model, job.recipe.parameters)
        # Build only optimizers that can reject their groups: building any makes torch import its compiler, which takes 3 s.
        if getattr(job.recipe.optimizer, 'func', None) in NEED_DECAY:
            job.recipe.optimizer(groups)
        check_foreign_optimizer(job.recipe, model)
        check_norms(job, parts.train, model, world_size)
        check_sample_sizes(job, parts, model)
        if world_size == dist.world_size():  # not in the launcher: the metric gathers over ranks
            check_foreign_metric(job, parts.evaluation, model)

    def check_transforms() -> None:
        for samples in (parts.train, parts.evaluation):
            check_foreign_transforms(samples, job.task.bands.count if job.task.bands else 3, train.seed)

    # Run every check, so that one message lists all problems.
    problems: list[str] = []
    for check in (check_cached, check_stream, lambda: parts.evaluation, check_annotations, check_transforms, check_network):
        try:
            check()
        except (RequestError, RunError, ValueError, OSError) as error:
            if str(error) not in problems:  # several parts may fail for one missing folder
                problems.append(str(error))
    if problems:
        raise RequestError('\n'.join(problems))
    return parts


def is_foreign(part: object) -> bool:
    """True for a part of a plugin."""
    return not type(part).__module__.startswith('phalanx.')


def check_foreign_transforms(samples: Dataset[Any], channels: int, seed: int) -> None:
    """Raise ValueError if a sample is no image after the transforms of plugins, or another one when it is read again.

    Such a training would depend on the number of ranks and workers, and on where it was resumed.
    """
    foreign = ' and '.join(type(each).__name__ for each in samples.transforms if is_foreign(each))
    for number in range(REPEATED if foreign else 0):
        draw = Draw(number % len(samples), number, 0, seed)
        name = samples.name(draw.index)
        try:
            first, second = (samples[draw].image for _ in range(2))
        except (SampleError, OSError):
            continue  # the loader reports and counts it
        except Exception as error:
            raise RuntimeError(f'transforms: {foreign} failed for {name}: {type(error).__name__}: {error}') from error
        if len(first) != channels or first.dtype not in (torch.uint8, torch.uint16):
            C, H, W = first.shape
            raise ValueError(
                f'transforms: with {foreign}, {name} is an image [{H}, {W}, {C}] of {first.dtype}; it must be '
                f'[H, W, {channels}] of uint8'
            )
        if not torch.equal(first, second):
            raise ValueError(
                f'transforms: with {foreign}, {name} is another image when it is read again; draw random numbers from the '
                "generator that a transform is called with (docs/extending.md, Other libraries' transforms)"
            )


def check_foreign_optimizer(recipe: Recipe, model: nn.Module) -> None:
    """Raise ValueError for an optimizer of a plugin that does not keep the rates, or does not resume with the same step.

    Takes two steps on a copy of the network, and the second once more from the saved state of the first.
    """
    build = recipe.optimizer
    if dist.rank() or is_shipped(build):
        return

    def start(network: nn.Module) -> Optimizer:
        groups = parameter_groups(network, recipe.parameters)
        optimizer = build(groups)
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f'it must be a torch.optim.Optimizer, got {type(optimizer).__name__}')
        if hasattr(optimizer, 'train') and hasattr(optimizer, 'eval'):
            raise ValueError('it trains and evaluates different weights (methods train and eval), which Phalanx does not')
        if 'lr' not in optimizer.defaults or not all('lr_factor' in group for group in optimizer.param_groups):
            raise ValueError('its defaults need `lr`, and its groups must keep the key `lr_factor` of the groups that it gets')
        held = sorted(id(parameter) for group in optimizer.param_groups for parameter in group['params'])
        if held != sorted(id(parameter) for group in groups for parameter in group['params']):
            raise ValueError('its groups must hold each parameter of the groups that it gets, once')
        return optimizer

    def step(optimizer: Optimizer, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for group in optimizer.param_groups:
            for parameter in group['params']:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        set_lr(optimizer, optimizer.defaults['lr'])
        optimizer.step()

    try:
        whole = copy.deepcopy(model)
        optimizer = start(whole)
        step(optimizer, 0)
        resumed = copy.deepcopy(whole)
        torch.save(optimizer.state_dict(), saved := io.BytesIO())
        step(optimizer, 1)
        again = start(resumed)
        load_state(again, torch.load(io.BytesIO(saved.getvalue()), weights_only=True), build)
        step(again, 1)
        if not all(parameter.isfinite().all() for parameter in whole.parameters()):
            raise ValueError('it makes weights that are not finite')
        if not all(map(torch.equal, whole.parameters(), resumed.parameters())):
            raise ValueError(
                'after its state was saved and loaded, its next step differs; state_dict() must hold all its state'
            )
    except Exception as error:  # code of the plugin may raise anything
        why = error if isinstance(error, ValueError) else f'{type(error).__name__}: {error}'
        raise ValueError(f'optimizer: a trial of two steps failed: {why} (docs/extending.md, Optimizers)') from error


def check_can_freeze(recipe: Recipe, model: nn.Module) -> None:
    """Raise ValueError if a part is to be frozen, but no part of the network has initial weights."""
    train = recipe.train
    if train.init_from is not None or train.init_networks or any(find_pretrained_backbones(model)):
        return
    if recipe.norm_sync == 'frozen':
        raise ValueError('norm_sync: frozen needs train.init_from: without initial weights there are no statistics to keep')
    if train.freeze:
        raise ValueError('train.freeze needs train.init_from: frozen parts would keep random weights')


def check_norms(job: Job, samples: Dataset[Any], model: nn.Module, world_size: int) -> None:
    """Raise ValueError if a batch norm would see a single value per channel: one sample, pooled to one pixel.

    Detected by a forward pass, run only if a rank would normalise one sample at a time. Skipped with initial weights, whose
    norms may be folded into convolutions.
    """
    train, shared = job.recipe.train, job.recipe.norm_sync in ('global', 'node') and world_size > 1
    at_once = train.global_batch(world_size) // (world_size * train.least_micro_batches)
    if at_once > 1 or shared or job.recipe.norm_sync == 'frozen' or train.init_from or train.init_networks:
        return
    _try_sample(job, samples, model.train())


def check_sample_sizes(job: Job, parts: Parts, model: nn.Module) -> None:
    """Raise ValueError if the network takes images of one size, and a sample of training or evaluation has another."""
    if any(isinstance(part, TimmBackbone) and part.size for part in model.modules()):
        for samples in (parts.train, parts.evaluation):
            _try_sample(job, samples, model.eval())


def check_foreign_metric(job: Job, samples: Dataset[Any], model: nn.Module) -> None:
    """Raise RunError if the metric of a plugin does not give its numbers for a sample: the first evaluation may be hours away.

    Collective.
    """
    metric = job.task.metric()
    if not is_foreign(metric) or (batch := _read_batch(job, samples)) is None:
        return
    with torch.no_grad():
        metric.update(job.task.predict(model.eval(), batch), batch)
    metric.gather()
    if dist.rank() == 0:
        numbers_of(metric, job.task.main_metric)
        metric.table()
        metric.figures()


def _try_sample(job: Job, samples: Dataset[Any], model: nn.Module) -> None:
    """Run `model` on one sample."""
    # Any sample will do: the sizes of the maps decide, not their content.
    if (batch := _read_batch(job, samples)) is None:
        return
    with torch.no_grad():
        # `align` pads the image as in a training step, so the maps have the sizes of a real step.
        if model.training:
            job.task.outputs(model, job.task.align(batch, WholeStep()))
        else:
            job.task.predict(model, batch)


def _read_batch(job: Job, samples: Dataset[Any]) -> Any:
    """Read a batch of one sample; None if its files cannot be used, which the loader reports and counts."""
    try:
        return job.task.collate([samples[Draw(0, 0, 0, job.recipe.train.seed)]])
    except (SampleError, OSError):
        return None


def check_initial(job: Job, parts: Parts, resume: str | None, fresh: bool) -> None:
    """Fetch and load the initial weights of the run. Raises RequestError.

    Does nothing if the run continues from a checkpoint, in its folder or at `resume`.
    """
    if not fresh and (resume not in (None, 'auto') or Checkpoints(job.folder, keep=1).has_steps()):
        # A checkpoint overwrites all weights: the initial ones need not even be on this machine any more.
        return
    try:
        _ = parts.initial
    except CheckpointError as error:
        cure = '; to start from random weights: --set train.init_from=null' if isinstance(error, FetchError) else ''
        raise RequestError(f'train.init_from: {error}{cure}') from None


def check_compiler() -> None:
    """Raise RequestError if the C++ compiler that torch.compile needs on CPUs is missing; torch would fail at the first
    step.
    """
    compiler = os.environ.get('CXX', 'clang++' if sys.platform == 'darwin' else 'g++')
    if shutil.which(compiler) is None:
        cure = 'install it (Debian and Ubuntu: apt install g++), name another in CXX, or set train.compile=false'
        raise RequestError(f'train.compile: on a CPU torch needs the compiler {compiler}, which is not installed; {cure}')
