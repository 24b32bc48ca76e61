"""The recognition network of PP-OCRv4 and PP-OCRv5 mobile as it is used: PP-LCNetV3, the SVTR neck and CTC.

Layer order as in PaddleOCR. The attention head that guides its backbone in the original's training is not there. Shapes:
B batch, T places along the line, K characters.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.models.svtr import SVTRNeck
from phalanx.families.recognition.texts import Texts
from phalanx.nn.backbones.lcnetv3 import RECOGNITION, PPLCNetV3


class SVTRLCNetV3(TextNetwork):
    """images [B, 3, 48, W] -> logits [B, W/8, K+1] for CTC."""

    heads = frozenset({'ctc'})
    heights = range(33, 49)  # a sixteenth, rounded up, is three rows, of which the pooling makes one

    def __init__(
        self, num_classes: int, backbone: PPLCNetV3, *, neck_channels: int, depth: int, hidden_size: int, dropout: float
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.neck = SVTRNeck(
            backbone.channels[-1], neck_channels, depth=depth, hidden_size=hidden_size, dropout=dropout, kernel_size=(1, 3)
        )
        self.head = nn.Linear(neck_channels, num_classes + 1)

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        features = F.avg_pool2d(self.backbone(images)[-1], (3, 2))  # [B, C, 1, T]
        return Outputs(self.head(self.neck(features)), features=None if texts is None else features)


def svtr_lcnetv3(
    num_classes: int,
    *,
    scale: float = 0.95,
    merged: bool = False,
    neck_channels: int = 120,
    depth: int = 2,
    hidden_size: int = 120,
    dropout: float = 0.1,
) -> SVTRLCNetV3:
    """The recogniser of PP-OCRv4 mobile for an alphabet of `num_classes` characters.

    `scale` is that of the backbone; `merged`: its sums of convolutions are single ones, as in the published ONNX files; `depth`
    counts the mixing blocks of the neck, which are `hidden_size` wide.
    """
    return SVTRLCNetV3(
        num_classes,
        PPLCNetV3(RECOGNITION, scale=scale, merged=merged),
        neck_channels=neck_channels,
        depth=depth,
        hidden_size=hidden_size,
        dropout=dropout,
    )
