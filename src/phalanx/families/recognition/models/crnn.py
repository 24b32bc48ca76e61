"""CRNN: a convolutional backbone, a recurrent network along the line, and a prediction at each position.

Shi et al., An End-to-End Trainable Neural Network for Image-based Sequence Recognition, https://arxiv.org/abs/1507.05717.
Backbones and sizes as in PaddleOCR. Shapes: B batch, T positions along the line, C channels, D hidden, K characters.
"""

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from phalanx.families.recognition.models.blocks import HEIGHTS, along_the_line
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.texts import Texts
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3

STRIDES = ((32, 4),)  # of the map that the network reads


def onnx_lstm(lstm: nn.LSTM, x: Tensor) -> Tensor:  # [B, T, C] -> [B, T, 2D]
    """The output of a bidirectional `lstm` with `batch_first`, as ONNX operators.

    For exports only, of lines of any length, where torch itself exports a fixed number of steps: it computes nothing.
    """
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


class CRNN(TextNetwork):
    """CRNN for an alphabet of `num_classes` characters.

    PaddleOCR takes a `hidden_size` of 96 with the large MobileNetV3, 48 with the small one and 256 with ResNet34-vd. Raises
    ValueError for a backbone without a map of 1/32 of the height and 1/4 of the width.
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
        (self.map,) = select_maps(self.backbone, STRIDES, 'crnn')
        channels = self.backbone.channels[self.map]
        self.neck = nn.LSTM(channels, hidden_size, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden_size, num_classes + 1)  # torch draws LSTM and head as PaddleOCR does

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        """images [B, 3, 32, W] -> logits [B, W/4, K+1]."""
        features = self.backbone(images)[self.map]  # [B, C, 1, T]
        line = along_the_line(features)
        sequence = onnx_lstm(self.neck, line) if torch.compiler.is_exporting() else self.neck(line)[0]
        return Outputs(self.head(sequence), features=None if texts is None else features)
