"""SVTR-LCNet, the recognition network of PP-OCRv3, on MobileNetV1 as it was changed for it.

Li et al., PP-OCRv3: More Attempts for the Improvement of Ultra Lightweight OCR System, https://arxiv.org/abs/2206.03001. In
training an attention head guides the backbone; only CTC is used afterwards. The backbone: Howard et al., MobileNets,
https://arxiv.org/abs/1704.04861; Cui et al., PP-LCNet, https://arxiv.org/abs/2109.15099 (activation, 5 x 5 filters and
squeeze-and-excitation at the end). Strides and pooling as in PaddleOCR, so it halves the height five times and the width three
times. Shapes: B batch, C channels, T positions along the line, K characters.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.recognition.models.blocks import HEIGHTS
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.models.sar import SARHead
from phalanx.families.recognition.models.svtr import SVTRNeck
from phalanx.families.recognition.texts import Texts
from phalanx.nn.layers import ConvBN, ConvBNHardswish, DepthwiseSeparable, initialise_as_paddle


class MobileNetV1Enhance(nn.Module):
    """images [B, 3, H, W], H of HEIGHTS -> features [B, C, 1, W/8], `channels` deep."""

    def __init__(self, *, scale: float) -> None:
        super().__init__()
        stem, *widths = (int(channels * scale) for channels in (32, 64, 128, 256, 512, 1024))
        self.stem = ConvBNHardswish(3, stem, 3, stride=2)
        self.blocks = nn.Sequential(
            DepthwiseSeparable(stem, widths[0], 3),
            DepthwiseSeparable(widths[0], widths[1], 3),
            DepthwiseSeparable(widths[1], widths[1], 3),
            DepthwiseSeparable(widths[1], widths[2], 3, stride=(2, 1)),
            DepthwiseSeparable(widths[2], widths[2], 3),
            DepthwiseSeparable(widths[2], widths[3], 3, stride=(2, 1)),
            *(DepthwiseSeparable(widths[3], widths[3], 5) for _ in range(5)),
            DepthwiseSeparable(widths[3], widths[4], 5, stride=(2, 1), squeeze=True),
            DepthwiseSeparable(widths[4], widths[4], 5, stride=(1, 2), squeeze=True),
        )
        self.channels = widths[4]
        initialise_as_paddle(self)  # so PaddleOCR draws squeeze-and-excitation; the other convolutions by He's rule:
        for module in self.modules():
            if isinstance(module, ConvBN):
                nn.init.kaiming_normal_(module.conv.weight, nonlinearity='relu')

    def forward(self, images: Tensor) -> Tensor:
        return F.avg_pool2d(self.blocks(self.stem(images)), 2)


class SVTRLCNet(TextNetwork):
    """SVTR-LCNet for an alphabet of `num_classes` characters, in the sizes of PP-OCRv3.

    `scale` is that of the backbone; `depth` counts the mixing blocks of the neck, which are `hidden_size` wide. With
    `use_guide` CTC does not train the backbone, the attention head alone does.
    """

    heads = frozenset({'ctc', 'sar'})
    heights = HEIGHTS

    def __init__(
        self,
        num_classes: int,
        *,
        scale: float = 0.5,
        neck_channels: int = 64,
        depth: int = 2,
        hidden_size: int = 120,
        use_guide: bool = True,
        sar_size: int = 512,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.backbone = MobileNetV1Enhance(scale=scale)
        channels = self.backbone.channels
        self.neck = SVTRNeck(channels, neck_channels, depth=depth, hidden_size=hidden_size, dropout=dropout)
        self.head = nn.Linear(neck_channels, num_classes + 1)  # torch draws it as PaddleOCR does
        self.sar = SARHead(num_classes, channels, size=sar_size, dropout=dropout)
        self.use_guide = use_guide

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        """images [B, 3, 48, W] -> logits [B, W/8, K+1] for CTC; with the texts, [B, L, K+2] of the attention head too."""
        features: Tensor = self.backbone(images)  # [B, C, 1, T]
        ctc = self.head(self.neck(features.detach() if self.use_guide else features))
        if texts is None:
            return Outputs(ctc)
        return Outputs(ctc, self.sar(features, texts), features)
