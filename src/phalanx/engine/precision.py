"""Mixed precision: autocast, loss scaling, and the optimizer step."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """Mixed-precision settings."""

    dtype: Literal['fp32', 'bf16', 'fp16'] = 'fp32'
    """What convolutions and matrix products compute in; weights stay float32. bf16 has the range of float32, fp16 has not."""
    tf32: bool = True
    """CUDA: float32 convolutions and matrix products use tensor cores, with the 10-bit mantissa of TF32; torch's own default
    for convolutions. false: all 23 bits, several times slower."""
    loss_scale: Literal['dynamic'] | float = 'dynamic'
    """fp16 only: the loss is multiplied by it, so that small gradients do not become 0. `dynamic` halves it at an overflow and
    doubles it after 2000 steps without one; a number stays."""

    def __post_init__(self) -> None:
        if self.loss_scale != 'dynamic' and not self.loss_scale > 0:
            raise ValueError(f'loss_scale must be above 0 or dynamic, got {self.loss_scale}')


class Precision:
    """Autocast, loss scaling, and the optimizer step that belongs to them."""

    def __init__(self, options: PrecisionOptions, device: torch.device) -> None:
        self._dtype, self._device = DTYPES[options.dtype], device
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.tf32
        self._constant = None if options.loss_scale == 'dynamic' else options.loss_scale
        self._scaler: torch.amp.GradScaler | None = None
        if options.dtype == 'fp16':
            self._scaler = torch.amp.GradScaler(device.type, init_scale=self._constant or 2.0**16)
        self._skipped: Tensor | int = 0  # a tensor on the device once there was a step: reading it would wait for the device

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context for forward passes and losses."""
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """`loss` times the loss scale: what goes backward."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(self.scaled(loss))

    def step(self, optimizer: Optimizer, clip: Callable[[], Tensor]) -> Tensor:
        """Clips and takes the optimizer step; returns the gradient norm [] that `clip` gives.

        Under fp16 a step whose gradients are not all finite is skipped.
        """
        if self._scaler is None:
            norm = clip()
            optimizer.step()
            return norm
        self._scaler.unscale_(optimizer)  # before clipping: the limit is meant for true gradients
        norm = clip()
        self._scaler.step(optimizer)
        self._scaler.update(self._constant)
        self._skipped = self._skipped + ~norm.isfinite()
        return norm

    @property
    def skips(self) -> bool:
        """Whether steps whose gradients are not finite are skipped."""
        return self._scaler is not None

    @property
    def scale(self) -> float | None:
        """The loss scale of the next step; None when the loss is not scaled. Waits for the device."""
        return None if self._scaler is None else self._scaler.get_scale()

    @property
    def skipped(self) -> int:
        """How many steps were skipped so far. Waits for the device."""
        return int(self._skipped)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs: how many steps were skipped and, with a dynamic loss scale, where it stands."""
        scaler = None if self._scaler is None or self._constant is not None else self._scaler.state_dict()
        return {'skipped': self.skipped, 'scaler': scaler}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. A run that changed its precision goes on with a fresh loss scale."""
        self._skipped = state['skipped']
        if self._scaler is not None and self._constant is None and state['scaler'] is not None:
            self._scaler.load_state_dict(state['scaler'])
