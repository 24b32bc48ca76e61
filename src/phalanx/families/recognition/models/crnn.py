"""CRNN: a convolutional backbone, a bidirectional LSTM along the line, and a classifier at each time step.

Shi et al., An End-to-End Trainable Neural Network for Image-based Sequence Recognition, https://arxiv.org/abs/1507.05717.
Backbones and sizes as in PaddleOCR. Shapes: B batch, T time steps along the line, C channels, D hidden, K characters.
"""

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from phalanx.families.recognition.models.blocks import HEIGHTS, to_sequence
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.texts import Texts
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3
from phalanx.nn.layers import is_exporting

STRIDES = ((32, 4),)  # (down, right) of the feature map that the neck takes


def onnx_lstm(lstm: nn.LSTM, x: Tensor) -> Tensor:  # [B, T, C] -> [B, T, 2D]
    """Export a bidirectional `lstm` with `batch_first` as ONNX operators, for any T.

    torch's own export would fix the number of time steps. The function builds a graph and computes nothing.
    """
    x = x.transpose(0, 1)
    # One ONNX operator per layer, with the weights of both directions.
    for layer in range(lstm.num_layers):
        weights, recurrent, ih, hh = (
            torch.stack([_reorder_gates(getattr(lstm, f'{name}_l{layer}{way}')) for way in ('', '_reverse')])
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


def _reorder_gates(gates: Tensor) -> Tensor:
    """Reorder gates [4D, ...] from torch's order (input, forget, cell, output) to ONNX's (input, output, forget, cell)."""
    D = len(gates) // 4
    input_gate, forget, cell, output = (gates[start : start + D] for start in range(0, 4 * D, D))
    return torch.cat([input_gate, output, forget, cell])


class CRNN(TextNetwork):
    """CRNN for a dictionary of `num_classes` characters.

    PaddleOCR uses a `hidden_size` of 96 with the large MobileNetV3, 48 with the small one and 256 with ResNet34-vd. Raises
    ValueError for a backbone without a feature map of 1/32 of the height and 1/4 of the width.
    """

    heights = HEIGHTS

    def __init__(
        self,
        num_classes: int,
        *,
        backbone: Annotated[partial[Backbone], BACKBONES] = partial(mobilenet_v3),
        hidden_size: int = 96,
    ) -> None:
        super().__init__()
        self.backbone = backbone(STRIDES)
        (self.map_index,) = select_maps(self.backbone, STRIDES, 'crnn')
        channels = self.backbone.channels[self.map_index]
        self.neck = nn.LSTM(channels, hidden_size, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden_size, num_classes + 1)  # torch initialises LSTM and head as PaddleOCR does

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        """Map images [B, 3, 32, W] to CTC logits [B, W/4, K+1]."""
        features = self.backbone(images)[self.map_index]  # [B, C, 1, T]
        line = to_sequence(features)
        # torch's own LSTM kernel except in an export.
        sequence = onnx_lstm(self.neck, line) if is_exporting() else self.neck(line)[0]
        return Outputs(self.head(sequence), features=None if texts is None else features)
