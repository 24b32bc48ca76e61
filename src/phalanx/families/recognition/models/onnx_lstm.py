"""An LSTM as the operator that ONNX has for it, for lines of any length: torch exports a fixed number of steps.

Shapes: T positions along the line, B batch, C channels, D hidden.
"""

import torch
from torch import Tensor, nn


def onnx_lstm(lstm: nn.LSTM, x: Tensor) -> Tensor:  # [B, T, C] -> [B, T, 2D]
    """The output of a bidirectional `lstm` with `batch_first`, as ONNX operators. For exports only: it computes nothing."""
    x = x.transpose(0, 1)
    for layer in range(lstm.num_layers):
        weights, recurrent, ih, hh = (
            torch.stack([_in_order(getattr(lstm, f'{name}_l{layer}{way}')) for way in ('', '_reverse')])
            for name in ('weight_ih', 'weight_hh', 'bias_ih', 'bias_hh')
        )
        states = torch.onnx.ops.symbolic(
            'LSTM',
            (x, weights, recurrent, torch.cat([ih, hh], dim=1)),
            {'hidden_size': lstm.hidden_size, 'direction': 'bidirectional'},
            dtype=x.dtype,
            shape=(x.shape[0], 2, x.shape[1], lstm.hidden_size),
        )  # [T, 2, B, D]
        x = states.transpose(1, 2).flatten(2)
    return x.transpose(0, 1)


def _in_order(gates: Tensor) -> Tensor:
    """[4D, ...] from torch's order of gates (input, forget, cell, output) to that of ONNX (input, output, forget, cell)."""
    D = len(gates) // 4
    input_gate, forget, cell, output = (gates[start : start + D] for start in range(0, 4 * D, D))
    return torch.cat([input_gate, output, forget, cell])
