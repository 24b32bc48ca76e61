"""A device as strict as a GPU, in the memory of the CPU.

A tensor on `strict` holds a CPU tensor and claims another device. What a GPU refuses is refused here: an operation on tensors
of two devices. What makes a host wait for a GPU is counted, with the line that asks for it: reading a scalar, `nonzero`, and
copies that block. Values are those of the CPU, so results can be compared with an ordinary run.

torch's hooks for backends in Python are experimental; `test_steps.py` pins what is used of them.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = 'strict'
HOST_READS = {'_local_scalar_dense', 'nonzero', 'masked_select', '_unique2', 'unique_dim', 'equal', 'is_nonzero'}
MASKED = {'index', 'index_put', 'index_put_', '_index_put_impl_'}  # a mask among the indices is turned into numbers
MOVES = {'_to_copy', 'copy_', 'copy'}
CTC = {'_ctc_loss', '_ctc_loss_backward'}  # take lengths from the host, and copy them to a GPU, which the host waits for
FROM_LISTS = (torch.tensor, torch.as_tensor, torch.asarray)
# Autocast changes no types here: torch has no lists of operations for devices in Python.
AUTOCAST = torch.library.Library('_', 'IMPL', 'AutocastPrivateUse1')
KERNELS = torch.library.Library('aten', 'IMPL', 'PrivateUse1')
SOURCES = str(Path(__file__).parents[2] / 'src')


@dataclass
class Record:
    """Waits of the host and copies between host and device, in the order in which they happened."""

    waits: list[str] = field(default_factory=list)  # 'operation at file:line'
    copies: list[str] = field(default_factory=list)  # 'to device at file:line' and 'to host at file:line'
    bytes: Counter[str] = field(default_factory=Counter)

    def wait(self, name: str) -> None:
        self.waits.append(f'{name} at {place()}')


def place() -> str:
    """File and line of Phalanx that this is called from."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(SOURCES):
        frame = frame.f_back
    return f'{Path(frame.f_code.co_filename).name}:{frame.f_lineno}' if frame is not None else 'torch'


RECORDS: list[Record] = [Record()]  # of the innermost `recording`


@contextlib.contextmanager
def recording() -> Iterator[Record]:
    RECORDS.append(Record())
    try:
        yield RECORDS[-1]
    finally:
        RECORDS.pop()


class StrictTensor(torch.Tensor):
    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor, requires_grad: bool = False) -> StrictTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        made.raw = raw
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def each_leaf(function: Callable[[Any], Any], values: Any) -> Any:
    """`function` of each value in nested tuples and lists, where arguments of operations are; torch's `tree_map` is slow."""
    if isinstance(values, tuple | list):
        return type(values)([each_leaf(function, value) for value in values])
    return function(values)


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU tensors that its strict arguments hold."""
    name = func.overloadpacket.__name__
    tensors: list[Tensor] = []

    def unwrap(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensors.append(value)
        return value.raw if isinstance(value, StrictTensor) else value

    masked = args[1] if name in MASKED else ()
    args, kwargs = each_leaf(unwrap, args), {key: each_leaf(unwrap, value) for key, value in kwargs.items()}
    strict = [tensor for tensor in tensors if isinstance(tensor, StrictTensor)]
    if strict and name not in MOVES | CTC and any(tensor.dim() for tensor in tensors if not isinstance(tensor, StrictTensor)):
        raise RuntimeError(f'{name}: expected all tensors to be on the same device, found {NAME}:0 and cpu')
    if name in HOST_READS | CTC or any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in masked):
        RECORDS[-1].wait(name)
    to_strict = bool(strict)
    if kwargs.get('device') is not None:
        to_strict = torch.device(kwargs['device']).type == NAME
        kwargs['device'] = torch.device('cpu')
        if name == '_to_copy' and to_strict != bool(strict):
            count_copy(tensors[0], to_strict, kwargs)
    if name in CELLS:
        return each_leaf(StrictTensor, CELLS[name](*args, **kwargs))
    same = {id(tensor.raw): tensor for tensor in strict}  # in-place operations return what they were given

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return same[id(value)] if id(value) in same else StrictTensor(value) if to_strict else value

    return each_leaf(wrap, func(*args, **kwargs))


def count_copy(values: Tensor, to_strict: bool, kwargs: dict[str, Any]) -> None:
    direction = 'to device' if to_strict else 'to host'
    RECORDS[-1].copies.append(f'{direction} at {place()}')
    RECORDS[-1].bytes[direction] += values.numel() * values.element_size()
    if not kwargs.get('non_blocking'):
        RECORDS[-1].wait(f'copy {direction}')


def lstm_cell(
    igates: Tensor, hgates: Tensor, cx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The cell that torch fuses on devices other than CPUs: hidden state, cell state, activations for the backward pass."""
    gates = igates + hgates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    of_cell = grad_hy * o * (1 - tanh * tanh) + (0 if grad_cy is None else grad_cy)
    of_gates = [of_cell * g * i * (1 - i), of_cell * cx * f * (1 - f), of_cell * i * (1 - g * g), grad_hy * tanh * o * (1 - o)]
    gates = torch.cat(of_gates, 1)
    return gates, of_cell * f, gates.sum(0) if has_bias else gates.new_empty(0)


def gru_cell(
    igates: Tensor, hgates: Tensor, hx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    igates = igates if input_bias is None else igates + input_bias
    hgates = hgates if hidden_bias is None else hgates + hidden_bias
    (ir, ii, inn), (hr, hi, hn) = igates.chunk(3, 1), hgates.chunk(3, 1)
    reset, update = (ir + hr).sigmoid(), (ii + hi).sigmoid()
    new = (inn + reset * hn).tanh()
    return (hx - new) * update + new, torch.cat([reset, update, new, hx, hn], 1)


def gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    reset, update, new, hx, hn = workspace.chunk(5, 1)
    of_update = grad_hy * (hx - new) * update * (1 - update)
    of_new = grad_hy * (1 - update) * (1 - new * new)
    of_reset = of_new * hn * reset * (1 - reset)
    of_inputs = torch.cat([of_reset, of_update, of_new], 1)
    of_hidden = torch.cat([of_reset, of_update, of_new * reset], 1)
    biases = (of_inputs.sum(0), of_hidden.sum(0)) if has_bias else (grad_hy.new_empty(0), grad_hy.new_empty(0))
    return of_inputs, of_hidden, grad_hy * update, *biases


CELLS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    '_thnn_fused_lstm_cell': lstm_cell,
    '_thnn_fused_lstm_cell_backward_impl': lstm_cell_backward,
    '_thnn_fused_gru_cell': gru_cell,
    '_thnn_fused_gru_cell_backward': gru_cell_backward,
}


class _Creations(TorchDispatchMode):
    """Sends `torch.zeros(..., device='strict')` and `.to('strict')` to `run`: no strict tensor is among their arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wish = (kwargs or {}).get('device')
        is_ours = wish is not None and torch.device(wish).type == NAME
        return run(func, args, kwargs) if is_ours else func(*args, **(kwargs or {}))


class _Lists(TorchFunctionMode):
    """`torch.tensor([...], device=...)` is built below the dispatcher; a GPU copies it from pageable memory, and waits."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        wish = kwargs.get('device')
        if func in FROM_LISTS and wish is not None and torch.device(wish).type == NAME:
            del kwargs['device']
            return func(*args, **kwargs).to(NAME)  # blocking, hence counted as a wait
        if func is torch.Tensor.new_tensor and isinstance(args[0], StrictTensor):
            return torch.tensor(args[1], dtype=kwargs.get('dtype', args[0].dtype)).to(NAME)
        if func is torch.Tensor.tolist and isinstance(args[0], StrictTensor):
            RECORDS[-1].wait('tolist')
            return args[0].raw.tolist()
        return func(*args, **kwargs)


@contextlib.contextmanager
def strict_device() -> Iterator[torch.device]:
    """Register the device for this process, which keeps it, and yield it with both modes on."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME)
        getattr(torch, NAME).get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
        AUTOCAST.fallback(torch.library.fallthrough_kernel)
        # CPUs and GPUs have a kernel for this; without one, torch computes a formula, which some processors round otherwise.
        KERNELS.impl('silu_backward', torch.library.fallthrough_kernel)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # Module.to cannot change the type of a parameter in place
    try:
        with _Creations(), _Lists():
            yield torch.device(NAME, 0)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
