"""Initial weights of a run."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from phalanx.config.read import ConfigError
from phalanx.data.folders import read_text
from phalanx.engine.job import open_job
from phalanx.engine.schema import Recipe
from phalanx.families.task import Task
from phalanx.parallel.norms import NormSync, mark_folded
from phalanx.report.readable import pluralize
from phalanx.system.errors import CheckpointError
from phalanx.weights.matching import RowNames, shorten
from phalanx.weights.onnx_file import characters_in
from phalanx.weights.published import class_names, recipe_of
from phalanx.weights.reading import LoadedWeights, load_own_weights, load_weights

log = logging.getLogger('phalanx')


def load_initial(model: nn.Module, recipe: Recipe, task: Task) -> list[LoadedWeights]:
    """Load the initial weights of a recipe, if any, into `model`; return what was loaded. Raises CheckpointError.

    Weights that a part of the network names are loaded first, and raise RequestError.
    """
    train, loaded = recipe.train, list[LoadedWeights]()
    load_own_weights(model)
    if train.init_from is not None:
        # Rows of a head are matched by the names of their classes, if both sides have names: data sets may order them
        # differently.
        theirs = _their_labels(train.init_from, train.init_classes, task)
        rows = RowNames(task.labels(), theirs) if theirs else None
        weights = load_weights(model, train.init_from, part=train.init_part, misshapen=train.init_misshapen, rows=rows)
        loaded.append(add_remarks(weights, mark_folded(model), recipe.norm_sync))
    # Distillation: teacher and student have weights of their own.
    for name, source in (train.init_networks or {}).items():
        weights = load_weights(model, source, misshapen=train.init_misshapen, network=name)
        loaded.append(add_remarks(weights, mark_folded(model), recipe.norm_sync))
    return loaded


def load_trained(model: nn.Module, task: Task, source: str | Path, *, raw: bool = False) -> LoadedWeights:
    """Load trained weights for use. Raises CheckpointError, also if the recipe orders the classes otherwise."""
    if moved := describe_moved(task, source):
        raise CheckpointError(moved)
    return load_weights(model, source, raw=raw)


def describe_moved(task: Task, source: str | Path) -> str:
    """Say which row of the first head has another place in the run at `source`; empty if none has, or if names are unknown.

    A class that only one of the two has may be a new name of the same thing, such as that of another data set.
    """
    ours, theirs = (next(iter(labels), ()) for labels in (task.labels(), _their_labels(str(source), None, task)))
    places = {name: place for place, name in enumerate(theirs)}
    for place, name in enumerate(ours):
        if name in places and list(theirs[place : place + 1]) != [name]:
            trained = f'{source}: was trained with {name!r} as row {places[name]} of its head'
            return f'{trained}, the recipe has it as row {place}; use the classes or characters of that run, in its order'
    return ''


def add_remarks(loaded: LoadedWeights, folded: int, norm_sync: NormSync) -> LoadedWeights:
    """Add remarks on `folded` batch norms and on frozen, freshly initialised ones to `loaded`."""
    remarks = list(loaded.remarks)
    if folded:
        text = pluralize(folded, 'batch norm is', 'batch norms are')
        remarks.append(f'{text} folded into a convolution in the file: here they train as scale and offset, without statistics')
    if norm_sync == 'frozen' and (fresh := loaded.fresh_norms):
        frozen = f'norm_sync: frozen leaves newly initialised batch norms without statistics of any data ({shorten(fresh)})'
        remarks.append(f'{frozen}; use norm_sync: off or global')
    return replace(loaded, remarks=tuple(remarks))


def _their_labels(source: str, names: tuple[str, ...] | Path | None, task: Task) -> Sequence[Sequence[str]]:
    """Return the labels of the rows of the heads in `source`; empty if unknown. Raises CheckpointError."""
    if names is not None:
        try:
            return task.labels(names if isinstance(names, tuple) else read_text(names).removesuffix('\n').split('\n'))
        except (OSError, ValueError) as error:
            raise CheckpointError(f'train.init_classes: {error}') from None
    # By default, names come from the weights themselves (metadata of the file, or an exported model) ...
    place = Path(source)
    if stored := class_names(source) or (characters_in(place) if place.suffix == '.onnx' else ()):
        return task.labels(stored)
    # ... or from the recipe they were trained with: that of their run folder, or of published weights.
    run = next((str(folder) for folder in (place, *place.parents[:2]) if (folder / 'config.yml').is_file()), None)
    recipe = run or recipe_of(source)
    if recipe is None:
        return ()
    try:
        other = open_job(recipe).task
        # Names of another family mean something else: characters are no classes of boxes.
        return other.labels() if type(other) is type(task) else ()
    except (ConfigError, ValueError, OSError) as error:
        log.info('%s: its classes are unknown: %s', recipe, error)
        return ()
