"""SVTR-LCNet, the recognition network of PP-OCRv3.

Li et al., PP-OCRv3: More Attempts for the Improvement of Ultra Lightweight OCR System, https://arxiv.org/abs/2206.03001. In
training an attention head guides the backbone; only CTC is used afterwards. Shapes: B batch, T positions along the line,
K characters.
"""

from torch import Tensor, nn

from phalanx.families.recognition.models.blocks import HEIGHTS
from phalanx.families.recognition.models.mobilenet_v1_enhance import MobileNetV1Enhance
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.models.sar import SARHead
from phalanx.families.recognition.models.svtr import SVTRNeck
from phalanx.families.recognition.texts import Texts


class SVTRLCNet(TextNetwork):
    """images [B, 3, 48, W] -> logits [B, W/8, K+1] for CTC; with the texts, [B, L, K+2] of the attention head too."""

    heads = frozenset({'ctc', 'sar'})
    heights = HEIGHTS

    def __init__(
        self,
        num_classes: int,
        backbone: MobileNetV1Enhance,
        *,
        neck_channels: int,
        depth: int,
        hidden_size: int,
        use_guide: bool,
        sar_size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.neck = SVTRNeck(backbone.channels, neck_channels, depth=depth, hidden_size=hidden_size, dropout=dropout)
        self.head = nn.Linear(neck_channels, num_classes + 1)  # torch draws it as PaddleOCR does
        self.sar = SARHead(num_classes, backbone.channels, size=sar_size, dropout=dropout)
        self.use_guide = use_guide

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        features: Tensor = self.backbone(images)  # [B, C, 1, T]
        ctc = self.head(self.neck(features.detach() if self.use_guide else features))
        if texts is None:
            return Outputs(ctc)
        return Outputs(ctc, self.sar(features, texts), features)


def svtr_lcnet(
    num_classes: int,
    *,
    scale: float = 0.5,
    neck_channels: int = 64,
    depth: int = 2,
    hidden_size: int = 120,
    use_guide: bool = True,
    sar_size: int = 512,
    dropout: float = 0.1,
) -> SVTRLCNet:
    """SVTR-LCNet for an alphabet of `num_classes` characters, in the sizes of PP-OCRv3.

    `scale` is that of the backbone; `depth` counts the mixing blocks of the neck, which are `hidden_size` wide. With
    `use_guide` CTC does not train the backbone, the attention head alone does.
    """
    return SVTRLCNet(
        num_classes,
        MobileNetV1Enhance(scale=scale),
        neck_channels=neck_channels,
        depth=depth,
        hidden_size=hidden_size,
        use_guide=use_guide,
        sar_size=sar_size,
        dropout=dropout,
    )
