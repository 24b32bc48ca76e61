"""Models by name, over all families."""

from __future__ import annotations

import difflib

from torch import nn

from phalanx.families import MODELS


def create_model(name: str, *, num_classes: int, **options: object) -> nn.Module:
    """The network `name` with freshly drawn weights; `options` are those of its builder, `backbone='stdc2'` say.

    Raises ValueError for an unknown name, with the nearest known one, and TypeError for an option that the builder has not.
    """
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1)
        raise ValueError(f'{name!r} is not one of {", ".join(MODELS)}' + (f'; did you mean {near[0]!r}?' if near else ''))
    model: nn.Module = MODELS[name](num_classes, **options)
    return model
