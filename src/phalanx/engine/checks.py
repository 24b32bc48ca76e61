"""Checks before a start: data sets, network, optimizer and shares of ranks that cannot be right."""

import copy
import os
import shutil
import sys
from typing import Any

import torch
from torch import nn

from phalanx.data.cache import check_room
from phalanx.data.samples import Dataset, Draw, SampleError
from phalanx.engine.device import pick_device
from phalanx.engine.job import Job
from phalanx.engine.loader import Stream, check_batch
from phalanx.engine.optim import NEED_DECAY
from phalanx.engine.optim.frozen import freeze
from phalanx.engine.optim.groups import parameter_groups
from phalanx.engine.parts import Parts
from phalanx.engine.schema import Recipe
from phalanx.nn.backbones.timm_backbone import find_pretrained_backbones
from phalanx.parallel.step import WholeStep
from phalanx.system.compiler import check_cache, use_own_cache
from phalanx.system.errors import CheckpointError, RequestError
from phalanx.weights.checkpoint import Checkpoints
from phalanx.weights.fetching import FetchError


def check_parts(job: Job, world_size: int) -> Parts:
    """Builds what can be wrong without a wrong key: data sets, network, optimizer, shares. Returns the parts as built.

    Raises RequestError with every problem found.
    """
    train, parts = job.recipe.train, Parts(job.recipe, job.task)
    if train.compile:
        use_own_cache()
        check_cache()
    if train.compile and pick_device(job.recipe.device).type == 'cpu':
        check_compiler()

    def check_cached() -> None:
        if train.cache is not None:
            check_room(train.cache)

    def check_stream() -> None:
        size, batch = len(parts.train), train.global_batch(world_size)
        check_batch(size, batch, world_size)
        Stream(size, batch, train.micro_batches, train.seed, 0, world_size)

    def check_network() -> None:
        model = copy.deepcopy(parts.network)  # what follows changes it
        check_can_freeze(job.recipe, model)
        freeze(model, train.freeze)
        groups = parameter_groups(model, job.recipe.parameters)
        if (
            getattr(job.recipe.optimizer, 'func', None) in NEED_DECAY
        ):  # making any optimizer makes torch import its compiler: 3 s
            job.recipe.optimizer(groups)
        check_norms(job, parts.train, model, world_size)

    problems: list[str] = []
    for check in (check_cached, check_stream, lambda: parts.evaluation, check_network):
        try:
            check()
        except (RequestError, ValueError, OSError) as error:
            if str(error) not in problems:  # one missing folder keeps several parts from being built
                problems.append(str(error))
    if problems:
        raise RequestError('\n'.join(problems))
    return parts


def check_can_freeze(recipe: Recipe, model: nn.Module) -> None:
    """Raises ValueError where something is to stay as it is, but no part of the network starts from weights."""
    train = recipe.train
    if train.init_from is not None or train.init_networks or any(find_pretrained_backbones(model)):
        return
    if recipe.norm_sync == 'frozen':
        raise ValueError('norm_sync: frozen needs train.init_from: without initial weights there are no statistics to keep')
    if train.freeze:
        raise ValueError('train.freeze needs train.init_from: what is frozen would stay random')


def check_norms(job: Job, samples: Dataset[Any], model: nn.Module, world_size: int) -> None:
    """Raises ValueError where a batch norm would see one value a channel: of one sample, of which pooling left one pixel.

    Which networks have such maps only a forward pass shows. It is made where a rank normalises a single sample by itself, but
    for published weights, whose norms may be part of convolutions.
    """
    train, shared = job.recipe.train, job.recipe.norm_sync in ('global', 'node') and world_size > 1
    at_once = train.global_batch(world_size) // (world_size * train.micro_batches)
    if at_once > 1 or shared or job.recipe.norm_sync == 'frozen' or train.init_from or train.init_networks:
        return
    try:
        sample = samples[Draw(0, 0, 0, train.seed)]
    except (SampleError, OSError):
        return  # the loader deals with it, and counts
    with torch.no_grad():
        job.task.outputs(model.train(), job.task.align(job.task.collate([sample]), WholeStep()))


def check_initial(job: Job, parts: Parts, resume: str | None, fresh: bool) -> None:
    """Loads the weights that the run starts from, and fetches them before. Raises RequestError.

    Unless it continues from a checkpoint, in its folder or where `resume` says.
    """
    if not fresh and (resume not in (None, 'auto') or Checkpoints(job.folder, keep=1).all()):
        return
    try:
        _ = parts.initial
    except CheckpointError as error:
        cure = '; to start from random weights: --set train.init_from=null' if isinstance(error, FetchError) else ''
        raise RequestError(f'train.init_from: {error}{cure}') from None


def check_compiler() -> None:
    """Raises RequestError without the compiler of C++ that torch takes for CPUs; torch itself says so at the first step."""
    compiler = os.environ.get('CXX', 'clang++' if sys.platform == 'darwin' else 'g++')
    if shutil.which(compiler) is None:
        cure = 'install it (Debian and Ubuntu: apt install g++), name another in CXX, or set train.compile=false'
        raise RequestError(f'train.compile: on a CPU torch needs the compiler {compiler}, which is not here; {cure}')
