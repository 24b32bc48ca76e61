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
    """Data type of convolutions and matrix products; weights stay float32. bf16 has the range of float32, fp16 does not."""
    tf32: bool = True
    """CUDA: use tensor cores for float32 convolutions and matrix products, with TF32's 10-bit mantissa (torch's default for
    convolutions). false keeps all 23 bits and is several times slower."""
    loss_scale: Literal['dynamic'] | float = 'dynamic'
    """fp16: factor of the loss, which keeps small gradients from underflowing. `dynamic` halves it at an overflow and doubles
    it after 2000 steps without one; a number is constant."""

    def __post_init__(self) -> None:
        if self.loss_scale != 'dynamic' and not self.loss_scale > 0:
            raise ValueError(f'loss_scale must be above 0 or dynamic, got {self.loss_scale}')


class Precision:
    """Autocast, loss scaling, and the matching optimizer step."""

    def __init__(self, options: PrecisionOptions, device: torch.device) -> None:
        self._dtype, self._device = DTYPES[options.dtype], device
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.tf32
        self._constant = None if options.loss_scale == 'dynamic' else options.loss_scale
        self._scaler: torch.amp.GradScaler | None = None
        if options.dtype == 'fp16':
            self._scaler = torch.amp.GradScaler(device.type, init_scale=self._constant or 2.0**16)
        self._skipped: Tensor | int = 0  # a tensor on the device once there was a step: reading it would wait for the device

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context for forward passes and losses."""
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return `loss` times the loss scale, to call backward on."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(self.scale_loss(loss))

    def step(self, optimizer: Optimizer, clip: Callable[[], Tensor]) -> Tensor:
        """Clip the gradients and take the optimizer step; return the gradient norm [] from `clip`.

        With fp16, a step whose gradients are not all finite is skipped.
        """
        if self._scaler is None:
            norm = clip()
            optimizer.step()
            return norm
        self._scaler.unscale_(optimizer)  # before clipping: the limit is meant for true gradients
        norm = clip()
        self._scaler.step(optimizer)
        self._scaler.update(self._constant)
        # Count on the device: the scaler itself does not tell how many steps it has skipped.
        self._skipped = self._skipped + ~norm.isfinite()
        return norm

    @property
    def skips(self) -> bool:
        """True if steps with non-finite gradients are skipped."""
        return self._scaler is not None

    @property
    def scale(self) -> float | None:
        """The loss scale of the next step; None when the loss is not scaled. Waits for the device."""
        return None if self._scaler is None else self._scaler.get_scale()

    @property
    def skipped(self) -> int:
        """Number of skipped steps so far. Waits for the device."""
        return int(self._skipped)

    def state(self) -> dict[str, Any]:
        """State for resuming: number of skipped steps and, if dynamic, the loss scale."""
        # A constant scale comes from the recipe.
        scaler = None if self._scaler is None or self._constant is not None else self._scaler.state_dict()
        return {'skipped': self.skipped, 'scaler': scaler}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`. A run that changed its precision starts with a new loss scale."""
        self._skipped = state['skipped']
        if self._scaler is not None and self._constant is None and state['scaler'] is not None:
            self._scaler.load_state_dict(state['scaler'])
