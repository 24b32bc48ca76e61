"""Weights of the original projects, put into our networks. One file an architecture says which array goes where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from phalanx.convert import pp_liteseg, unet
from phalanx.convert.original import Original
from phalanx.segmentation.models.pp_liteseg import PPLiteSeg
from phalanx.segmentation.models.unet import UNet

ORIGINALS: dict[type[nn.Module], Callable[[Any], Original]] = {PPLiteSeg: pp_liteseg.original, UNet: unet.original}


def load_original(model: nn.Module, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Fills `model`, whose dtype and device stay, from `arrays`: {original parameter name: array}.

    Raises ValueError, before anything is filled, listing by its original name every array left over, missing or misshapen.
    """
    if type(model) not in ORIGINALS:
        known = ', '.join(kind.__name__ for kind in ORIGINALS)
        raise ValueError(f'there is no conversion for {type(model).__name__}; there is for {known}')
    original = ORIGINALS[type(model)](model)
    tensors = {original.name(name): tensor for name, tensor in model.state_dict().items() if _has_original(name)}
    problems = _problems({name: tuple(tensor.shape) for name, tensor in tensors.items()}, arrays, original)
    if problems:
        raise ValueError(f'the weights do not fit {type(model).__name__}:\n' + '\n'.join(problems))
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))


def _has_original(name: str) -> bool:
    return not name.endswith('.num_batches_tracked')  # torch's own count of steps


def _problems(shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, npt.NDArray[Any]], original: Original) -> list[str]:
    missing = [f'missing: {name} {list(shape)}' for name, shape in shapes.items() if name not in arrays]
    misshapen = [
        f'misshapen: {name} is {list(arrays[name].shape)}, the model has {list(shape)}'
        for name, shape in shapes.items()
        if name in arrays and arrays[name].shape != shape
    ]
    left_over = [
        f'left over: {name} {list(array.shape)}'
        for name, array in arrays.items()
        if name not in shapes and not original.is_redundant(name, arrays)
    ]
    return missing + misshapen + left_over
