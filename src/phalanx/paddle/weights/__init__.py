"""Names of our parameters in the weight files of the Paddle projects.

Each file has, for the networks of one family, ORIGINALS, network -> its `Original`, and ONNX_LAYERS, network -> its layers with
weights in the order of the ONNX files of the original.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from phalanx.paddle.weights.original import Original

FILES = {  # family -> its file here
    'segmentation': 'segmentation',
    'detection': 'ppyoloe',
    'recognition': 'recognition',
    'table': 'slanet',
    'text_detection': 'db',
}


def original_of(model: nn.Module) -> Original | None:
    """Names of the original of `model`; None for a network without one."""
    name = _of_family(model, 'ORIGINALS')
    return None if name is None else name(model)


def onnx_layers_of(model: nn.Module) -> list[str] | None:
    """Layers of `model` that have weights, in the order of the original's ONNX files; None where these cannot be read."""
    layers = _of_family(model, 'ONNX_LAYERS')
    return None if layers is None else layers(model)


def _of_family(model: nn.Module, table: str) -> Callable[[Any], Any] | None:
    """Entry for the class of `model` in a table of its family's file; None for a network from outside the package."""
    package, room, family, *_ = [*type(model).__module__.split('.'), '', '']
    if (package, room) != ('phalanx', 'families') or family not in FILES:
        return None
    entries: dict[type, Callable[[Any], Any]] = getattr(import_module(f'{__name__}.{FILES[family]}'), table)
    return entries.get(type(model))


def paddle_layout(model: nn.Module) -> dict[str, Tensor]:
    """State of `model` by our names, in Paddle's layout: linear layers are [in, out], where torch has [out, in].

    Without `num_batches_tracked`, which Paddle does not have. The tensors are views: filling them fills the model.
    """
    linear = {f'{name}.weight' for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    linear |= {f'{name}.in_proj_weight' for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)}
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith('.num_batches_tracked')}
    return {name: tensor.T if name in linear else tensor for name, tensor in state.items()}
