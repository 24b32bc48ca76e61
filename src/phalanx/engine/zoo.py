"""Models by name, over all families."""

from pathlib import Path

from torch import nn

from phalanx.config.bind import convert_value, key_types
from phalanx.config.read import did_you_mean
from phalanx.engine.plugins import load_plugins
from phalanx.families.catalog import models
from phalanx.weights.reading import load_own_weights, load_weights


def create_model(name: str, *, num_classes: int, weights: str | Path | None = None, **options: object) -> nn.Module:
    """The network `name` with freshly drawn weights; `options` are those of its builder, as in a recipe:
    `backbone='stdc2'` or `backbone={'name': 'mit_b0', 'drop_path': 0.2}`.

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
        raise ValueError(f'num_classes must be an integer from 1 on, got {num_classes!r}')
    hints = key_types(known[name])
    checked = {option: convert_value(value, hints[option], option) for option, value in options.items() if option in hints}
    model: nn.Module = known[name](num_classes, **(options | checked))
    load_own_weights(model)
    if weights is not None:
        load_weights(model, weights, misshapen='skip').announce()
    return model
