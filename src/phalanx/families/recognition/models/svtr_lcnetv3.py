"""The recognition networks of PP-OCRv4 and PP-OCRv5 mobile, on PP-LCNetV3, and of PP-OCRv6 small, on PP-LCNetV4.

Behind the backbone are an SVTR neck, a light one in PP-OCRv6, and CTC, in the order of layers of PaddleOCR. In training an
attention head can guide the backbone; only CTC is used afterwards. Shapes: B batch, T positions along the line, L characters of
the texts with begin, end and padding, K characters.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.recognition.models.nrtr import NRTRHead
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.models.svtr import LightSVTRNeck, SVTRNeck
from phalanx.families.recognition.texts import Texts
from phalanx.nn.backbones.lcnetv3 import RECOGNITION, PPLCNetV3
from phalanx.nn.backbones.lcnetv4 import RECOGNITION as V4_RECOGNITION
from phalanx.nn.backbones.lcnetv4 import PPLCNetV4


class SVTRLCNetV3(TextNetwork):
    """images [B, 3, H, W] -> logits [B, W/8, K+1] for CTC; with the texts, [B, L-1, K+5] of the NRTR head too."""

    def __init__(
        self,
        num_classes: int,
        backbone: PPLCNetV3 | PPLCNetV4,
        neck: SVTRNeck | LightSVTRNeck,
        *,
        neck_channels: int,
        dropout: float,
        nrtr_size: int | None,
        nrtr_depth: int,
        use_guide: bool,
    ) -> None:
        super().__init__()
        channels = backbone.channels[-1]
        self.backbone = backbone
        self.neck = neck
        self.head = nn.Linear(neck_channels, num_classes + 1)
        self.nrtr: NRTRHead | None = None
        if nrtr_size is not None:
            self.nrtr = NRTRHead(num_classes, channels, size=nrtr_size, depth=nrtr_depth, dropout=dropout)
            self.heads = frozenset({'ctc', 'nrtr'})
        self.use_guide = use_guide and self.nrtr is not None

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        rows = self.backbone(images)[-1]
        # PaddleOCR averages three rows, and all of them in training, where lines of 32, 48 and 64 pixels leave two to four.
        features = F.avg_pool2d(rows, (rows.shape[2], 2))  # [B, C, 1, T]
        ctc = self.head(self.neck(features.detach() if self.use_guide else features))
        if texts is None:
            return Outputs(ctc)
        return Outputs(ctc, features=features, nrtr=None if self.nrtr is None else self.nrtr(features, texts))


def svtr_lcnetv3(
    num_classes: int,
    *,
    scale: float = 0.95,
    merged: bool = False,
    neck_channels: int = 120,
    depth: int = 2,
    hidden_size: int = 120,
    dropout: float = 0.1,
    nrtr_size: int | None = None,
    nrtr_depth: int = 4,
    use_guide: bool = True,
) -> SVTRLCNetV3:
    """The recogniser of PP-OCRv4 mobile for an alphabet of `num_classes` characters.

    `scale` is that of the backbone; `merged`: its sums of convolutions are single ones, as in the published ONNX files; `depth`
    counts the mixing blocks of the neck, which are `hidden_size` wide. `nrtr_size`: how wide an NRTR head is (published: 384)
    that learns with CTC and is not used afterwards, `nrtr_depth` how many blocks it has; none: there is none. With `use_guide`
    CTC does not train the backbone, such a head alone does.
    """
    backbone = PPLCNetV3(RECOGNITION, scale=scale, merged=merged)
    neck = SVTRNeck(
        backbone.channels[-1], neck_channels, depth=depth, hidden_size=hidden_size, dropout=dropout, kernel_size=(1, 3)
    )
    return SVTRLCNetV3(
        num_classes,
        backbone,
        neck,
        neck_channels=neck_channels,
        dropout=dropout,
        nrtr_size=nrtr_size,
        nrtr_depth=nrtr_depth,
        use_guide=use_guide,
    )


class SVTRLCNetV4(SVTRLCNetV3):
    """The recogniser of PP-OCRv6 small for an alphabet of `num_classes` characters.

    `depth` counts the mixing blocks of the neck, which are `hidden_size` wide. `nrtr_size`, `nrtr_depth` and `use_guide` are
    those of svtr_lcnetv3: a head that learns with CTC and is not used afterwards. Published are the weights without it.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        hidden_size: int = 120,
        depth: int = 2,
        dropout: float = 0.1,
        nrtr_size: int | None = None,
        nrtr_depth: int = 4,
        use_guide: bool = True,
    ) -> None:
        backbone = PPLCNetV4(V4_RECOGNITION, stem_channels=48)
        super().__init__(
            num_classes,
            backbone,
            LightSVTRNeck(backbone.channels[-1], hidden_size, depth=depth, dropout=dropout),
            neck_channels=hidden_size,
            dropout=dropout,
            nrtr_size=nrtr_size,
            nrtr_depth=nrtr_depth,
            use_guide=use_guide,
        )
