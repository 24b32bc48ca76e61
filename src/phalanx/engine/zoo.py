"""Models by name, over all families."""

import inspect
from pathlib import Path
from typing import Literal, get_args, get_origin

from torch import nn

from phalanx.config.read import did_you_mean
from phalanx.engine.plugins import load_plugins
from phalanx.families.catalog import models
from phalanx.weights.reading import load_weights


def create_model(name: str, *, num_classes: int, weights: str | Path | None = None, **options: object) -> nn.Module:
    """The network `name` with freshly drawn weights; `options` are those of its builder, `backbone='stdc2'` say.

    `weights`: those to start from, as `train.init_from` takes them: a file, an address, a name that `phalanx weights` lists.
    What fits is taken: a head for another number of classes stays as drawn. Raises ValueError for an unknown name or choice,
    with the nearest known one, TypeError for an option that the builder has not, and CheckpointError for weights that cannot be
    had or are of another network.
    """
    load_plugins()
    known = models()
    if name not in known:
        raise ValueError(f'{name!r} is not one of {", ".join(known)}{did_you_mean(name, known)}')
    if not isinstance(num_classes, int) or num_classes < 1:
        raise ValueError(f'num_classes must be a whole number from 1 on, got {num_classes!r}')
    hints = {option.name: option.annotation for option in inspect.signature(known[name], eval_str=True).parameters.values()}
    for option, value in options.items():
        choices = get_args(hints.get(option))
        if get_origin(hints.get(option)) is Literal and value not in choices:
            raise ValueError(f'{option}: {value!r} is not one of {", ".join(map(str, choices))}{did_you_mean(value, choices)}')
    model: nn.Module = known[name](num_classes, **options)
    if weights is not None:
        load_weights(model, weights, misshapen='skip').announce()
    return model
