"""Models by name, over all families."""

import logging
from pathlib import Path

from torch import nn

from phalanx.config.bind import convert_value, key_types
from phalanx.config.read import did_you_mean
from phalanx.engine.plugins import load_plugins
from phalanx.families.catalog import models
from phalanx.weights.reading import load_own_weights, load_weights

log = logging.getLogger('phalanx')


def create_model(name: str, *, num_classes: int, weights: str | Path | None = None, **options: object) -> nn.Module:
    """Build the network `name` with random weights; `options` are those of its builder, such as `backbone='stdc2'`.

    `weights`: initial weights, as for `train.init_from`: a file, an address, or a name from `phalanx weights`. Tensors whose
    names and shapes match are loaded; a head for another number of classes stays random, and a warning names what did. Raises
    ValueError for an unknown name or choice, with the nearest known one, TypeError for an unknown option, and CheckpointError
    for weights that cannot be loaded or belong to another network.
    """
    load_plugins()
    known = models()
    if name not in known:
        raise ValueError(f'{name!r} is not one of {", ".join(known)}{did_you_mean(name, known)}')
    if type(num_classes) is not int or num_classes < 1:
        raise ValueError(f'num_classes must be an integer of at least 1, got {num_classes!r}')
    # Options are checked like keys of a recipe, so that `backbone='stdc2'` works in both.
    hints = key_types(known[name])
    checked = {option: convert_value(value, hints[option], option) for option, value in options.items() if option in hints}
    model: nn.Module = known[name](num_classes, **(options | checked))
    load_own_weights(model)
    if weights is not None:
        for note in load_weights(model, weights, misshapen='skip').notes:
            log.warning('%s', note)
    return model
