"""Operations on torch's device `meta`, which has shapes and no values: the memory that they would take on another device.

Tensors there occupy nothing, so a step of any size takes a second. What a device does differently is imitated: attention
without the matrix of all pairs, CTC, reads by the host (zeros), and autocast, which torch lacks for this device.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

META = torch.device('meta')
OTHER = 'activations'  # part of every tensor that is not assigned to another one
FLASH, EFFICIENT = 1, 2  # kernels of attention: torch's enum SDPBackend
ATEN = torch.ops.aten


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors on `meta` within its context, now and at the peak, by part."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: dict[int, tuple[str, int]] = {}  # of each living storage: its part, bytes
        self.now: Counter[str] = Counter()
        self.peak, self.most = self.now.copy(), 0  # at the peak: by part, and in all

    def assign(self, part: str, tensors: Iterable[Tensor | None]) -> None:
        """Count `tensors` to `part`, whether they have been counted before or not."""
        for tensor in tensors:
            if tensor is not None and tensor.is_meta:
                before, size = self._add(tensor)
                self.now[before] -= size
                self.now[part] += size
                self.storages[_key(tensor)] = (part, size)

    def begin(self) -> None:
        """Forget the peak so far."""
        self.peak, self.most = self.now.copy(), self.now.total()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = NotImplemented
        if (imitate := IMITATIONS.get(function)) is not None and args[0].is_meta:
            results = imitate(args, kwargs or {})
        if results is NotImplemented:
            results = function(*args, **(kwargs or {}))
        for each in (results,) if isinstance(results, Tensor) else tree_leaves(results):
            if isinstance(each, Tensor) and each.is_meta:
                self._add(each)
        if (total := self.now.total()) > self.most:
            self.most, self.peak = total, self.now.copy()
        return results

    def _add(self, tensor: Tensor) -> tuple[str, int]:
        """Return part and size of the storage of `tensor`, from now on counted until it is freed."""
        key = _key(tensor)
        if key not in self.storages:
            storage = tensor.untyped_storage()
            self.storages[key] = (OTHER, storage.nbytes())
            self.now[OTHER] += storage.nbytes()
            weakref.finalize(storage, self._remove, key)
        return self.storages[key]

    def _remove(self, key: int) -> None:
        part, size = self.storages.pop(key)
        self.now[part] -= size


def _key(tensor: Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


# Imitations get the arguments of an operation, and return NotImplemented to leave it to torch.
def _read(args: Any, _: Any) -> float | bool:
    """Value on the host: there is none, so 0."""
    return torch.zeros((), dtype=args[0].dtype).item()


def _copy(args: Any, kwargs: Any) -> Any:
    """Copy to the host: zeros."""
    device = kwargs.get('device')
    if device is None or device.type == 'meta':
        return NotImplemented
    return torch.zeros(args[0].shape, dtype=kwargs.get('dtype') or args[0].dtype)


def _choose_attention(args: Any, _: Any) -> int:
    """Kernels of CUDA devices; without this, `meta` would compute the matrix of all pairs."""
    return EFFICIENT if args[0].dtype == torch.float32 else FLASH


def _ctc(args: Any, _: Any) -> tuple[Tensor, Tensor]:
    """Loss [B] and forward variables [B, T, 2 L + 1] of log-probabilities [T, B, K] and targets [B, L]."""
    log_probs, targets = args[:2]
    T, B = log_probs.shape[:2]
    return log_probs.new_empty(B), log_probs.new_empty(B, T, 2 * targets.shape[-1] + 1)


def _ctc_backward(args: Any, _: Any) -> Tensor:
    return torch.empty_like(args[1])


def _lstm_layer(args: Any, _: Any) -> tuple[Tensor, ...]:
    """Output [T, B, H], states [1, B, H] and, for a backward pass, workspace of a layer of oneDNN's LSTM in one direction."""
    x, hidden, cell = args[0], args[5], args[6]
    (T, B, C), H = x.shape, hidden.shape[-1]
    size = workspace_of_lstm(T, B, C, H) if torch.is_grad_enabled() else 0
    return x.new_empty(T, B, H), torch.empty_like(hidden), torch.empty_like(cell), x.new_empty(size, dtype=torch.uint8)


def _lstm_layer_backward(args: Any, _: Any) -> tuple[Tensor, ...]:
    """Gradients of input, weights, both biases and initial states."""
    x, w_input, w_hidden, bias, _, hidden, cell = map(torch.empty_like, args[:7])
    return x, w_input, w_hidden, bias, bias, hidden, cell


def workspace_of_lstm(T: int, B: int, C: int, H: int) -> int:
    """Bytes that oneDNN 3 keeps of T steps of B inputs of C values, for a backward pass in float32 with H hidden values.

    These are gates and hidden state of each step; inputs and cell states, from before the first one on; and, already, their
    gradients. Rows of matrices are padded to 64 bytes, and by 64 bytes more if they would be a multiple of 256 numbers; each
    part is padded to pages (`set_workspace_sizes`, `set_offsets` and `get_good_ld` in oneDNN's src/cpu/rnn/rnn_utils).
    """
    gates, state, wide = (n + 16 * (n % 256 == 0) for n in (-(-n // 16) * 16 for n in (4 * H, H, max(C, H))))
    both = 2 * (T + 1) * B  # of the layer and its input
    parts = [T * B * gates, T * B * state, *3 * [both * wide], *2 * [both * H]]
    return sum(-(-4 * part // 4096) * 4096 for part in parts)


IMITATIONS: dict[Any, Callable[..., Any]] = {
    ATEN._local_scalar_dense.default: _read,
    ATEN._to_copy.default: _copy,
    ATEN._fused_sdp_choice.default: _choose_attention,
    ATEN._ctc_loss.default: _ctc,
    ATEN._ctc_loss_backward.default: _ctc_backward,
    ATEN.mkldnn_rnn_layer.default: _lstm_layer,
    ATEN.mkldnn_rnn_layer_backward.default: _lstm_layer_backward,
}


class HostLstm(TorchFunctionMode):
    """LSTMs in float32 as on a CPU: by oneDNN, one layer and direction after another."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_onednn = function is torch._VF.lstm and not isinstance(args[1], Tensor) and args[0].dtype == torch.float32
        if not by_onednn or not args[3] or args[5]:
            return function(*args, **(kwargs or {}))  # packed sequences too, and others than our LSTMs: no biases, or dropout
        x, (hidden, cell), weights, _, num_layers, _, training, bidirectional, batch_first = args
        x, ways, states = (x.transpose(0, 1) if batch_first else x).contiguous(), 1 + bidirectional, []
        for layer in range(num_layers):
            outputs = []
            for place in range(layer * ways, layer * ways + ways):
                own = (*weights[4 * place : 4 * place + 4], hidden[place : place + 1], cell[place : place + 1])
                how = (place % ways == 1, (), 2, hidden.shape[-1], 1, True, False, False, training)  # 2: LSTM
                output, *state, _ = ATEN.mkldnn_rnn_layer(x, *own, *how)
                outputs.append(output)
                states.append(state)
            x = torch.cat(outputs, -1) if bidirectional else output
        return x.transpose(0, 1) if batch_first else x, *map(torch.cat, zip(*states, strict=True))


# Functions that autocast runs in half precision and in float32 on CUDA (torch's documentation of torch.amp).
MATRIX_PRODUCTS = ('addbmm', 'addmm', 'baddbmm', 'bmm', 'matmul', 'mm', 'mv', 'prelu')
IN_HALF = {
    *(getattr(torch, name) for name in MATRIX_PRODUCTS),
    *(getattr(Tensor, name) for name in (*MATRIX_PRODUCTS, '__matmul__', '__rmatmul__')),
    *(getattr(torch, f'conv{kind}{n}d') for kind in ('', '_transpose') for n in (1, 2, 3)),
    *(torch._VF.lstm, torch._VF.gru, torch._VF.lstm_cell, torch._VF.gru_cell),
    *(F.linear, F.scaled_dot_product_attention, F.multi_head_attention_forward),
}
REDUCTIONS = ('exp', 'log', 'log1p', 'log2', 'pow', 'prod', 'reciprocal', 'rsqrt', 'sum', 'cumsum', 'softmax', 'log_softmax')
IN_FLOAT32 = {
    *(getattr(torch, name) for name in REDUCTIONS),
    *(getattr(Tensor, name) for name in (*REDUCTIONS, '__pow__', '__rtruediv__')),
    *(F.softmax, F.log_softmax, F.softplus, F.layer_norm, F.group_norm, F.normalize, F.cross_entropy, F.nll_loss, F.kl_div),
    *(F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits, F.cosine_similarity),
}
CAST = (torch.float16, torch.bfloat16, torch.float32)


class Autocast(TorchFunctionMode):
    """Autocast of CUDA for tensors on `meta`; casts of parameters are kept until its end, as autocast keeps them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.kept = dtype, dict[int, Tensor]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = self.dtype if function in IN_HALF else torch.float32 if function in IN_FLOAT32 else None
        if dtype is not None:
            args, kwargs = tree_map(lambda value: self._cast(value, dtype), (args, kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in CAST or value.dtype == dtype:
            return value
        if not isinstance(value, nn.Parameter):
            return value.to(dtype)
        if id(value) not in self.kept:
            self.kept[id(value)] = value.to(dtype)
        return self.kept[id(value)]
