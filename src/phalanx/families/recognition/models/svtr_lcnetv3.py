"""Recognition networks of PP-OCRv4 and PP-OCRv5 mobile, on PP-LCNetV3, and of PP-OCRv6, on PP-LCNetV4.

The backbone is followed by an SVTR neck, a light one in PP-OCRv6 and convolutions in its tiny size, and a CTC head, with layers
in PaddleOCR's order. An NRTR head can guide the training of the backbone (GTC); prediction uses CTC alone. Shapes: B batch,
T time steps along the line, L characters of the texts with begin, end and padding, K characters.
"""

from functools import partial
from typing import Annotated, Self

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.recognition.models.nrtr import NRTRHead
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.models.svtr import ConvNeck, LightSVTRNeck, SVTRNeck
from phalanx.families.recognition.texts import Texts
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.lcnetv3 import merge, pp_lcnet_v3
from phalanx.nn.backbones.lcnetv4 import pp_lcnet_v4

STRIDES = ((16, 4),)  # (down, right) of the feature map that neck and NRTR head take


class SVTRLCNetV3(TextNetwork):
    """Images [B, 3, H, W] -> CTC logits [B, W/8, K+1] and, with texts, NRTR logits [B, L-1, K+5]."""

    def __init__(
        self,
        num_classes: int,
        backbone: Backbone,
        neck: SVTRNeck | LightSVTRNeck | ConvNeck,
        *,
        neck_channels: int,
        dropout: float,
        nrtr_size: int | None,
        nrtr_depth: int,
        use_guide: bool,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        (self.map_index,) = select_maps(backbone, STRIDES, 'svtr_lcnetv3')
        channels = backbone.channels[self.map_index]
        self.neck = neck
        self.head = nn.Linear(neck_channels, num_classes + 1)
        # NRTR's loss trains the backbone together with that of CTC.
        self.nrtr: NRTRHead | None = None
        if nrtr_size is not None:
            self.nrtr = NRTRHead(num_classes, channels, size=nrtr_size, depth=nrtr_depth, dropout=dropout)
            self.heads = frozenset({'ctc', 'nrtr'})
        self.use_guide = use_guide and self.nrtr is not None

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        """Return the logits of CTC and, if texts are given, of the NRTR head."""
        rows = self.backbone(images)[self.map_index]
        # PaddleOCR averages three rows in evaluation and all rows in training, where lines of 32 to 64 pixels give two to four.
        features = F.avg_pool2d(rows, (rows.shape[2], 2))  # [B, C, 1, T]
        ctc = self.head(self.neck(features.detach() if self.use_guide else features))
        if texts is None:
            return Outputs(ctc)
        return Outputs(ctc, features=features, nrtr=None if self.nrtr is None else self.nrtr(features, texts))

    def switch_to_deploy(self) -> Self:
        """Merge re-parameterised convolutions and drop the NRTR head, for evaluation only; return this network."""
        merge(self.eval())
        self.nrtr = None
        return self


def svtr_lcnetv3(
    num_classes: int,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(pp_lcnet_v3, scale=0.95),
    neck_channels: int = 120,
    depth: int = 2,
    hidden_size: int = 120,
    dropout: float = 0.1,
    nrtr_size: int | None = None,
    nrtr_depth: int = 4,
    use_guide: bool = True,
) -> SVTRLCNetV3:
    """Recogniser of PP-OCRv4 mobile for a dictionary of `num_classes` characters.

    `depth`: number of mixing blocks of the neck, `hidden_size`: their channels. `nrtr_size`: channels of an NRTR head that is
    trained along with CTC (published: 384), `nrtr_depth`: its number of blocks; null: no such head. `use_guide`: stop the
    gradient of CTC before the backbone, so that the NRTR head alone trains it. Raises ValueError for a backbone without a
    feature map of 1/16 of the height and 1/4 of the width.
    """
    maps = backbone(STRIDES)
    neck = SVTRNeck(maps.channels[-1], neck_channels, depth=depth, hidden_size=hidden_size, dropout=dropout, kernel_size=(1, 3))
    return SVTRLCNetV3(
        num_classes,
        maps,
        neck,
        neck_channels=neck_channels,
        dropout=dropout,
        nrtr_size=nrtr_size,
        nrtr_depth=nrtr_depth,
        use_guide=use_guide,
    )


class SVTRLCNetV4(SVTRLCNetV3):
    """Recogniser of PP-OCRv6 small or medium for a dictionary of `num_classes` characters.

    `depth`: number of mixing blocks of the neck, `hidden_size`: their channels, `mlp_ratio`: of those of their MLP to it;
    medium has 2, 192 and 4. `nrtr_size`, `nrtr_depth` and `use_guide`: see svtr_lcnetv3. The published weights are those
    without an NRTR head.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        backbone: Annotated[partial[Backbone], BACKBONES] = partial(pp_lcnet_v4),
        hidden_size: int = 120,
        depth: int = 2,
        mlp_ratio: int = 2,
        dropout: float = 0.1,
        nrtr_size: int | None = None,
        nrtr_depth: int = 4,
        use_guide: bool = True,
    ) -> None:
        maps = backbone(STRIDES)
        super().__init__(
            num_classes,
            maps,
            LightSVTRNeck(maps.channels[-1], hidden_size, depth=depth, dropout=dropout, mlp_ratio=mlp_ratio),
            neck_channels=hidden_size,
            dropout=dropout,
            nrtr_size=nrtr_size,
            nrtr_depth=nrtr_depth,
            use_guide=use_guide,
        )


class ConvLCNetV4(SVTRLCNetV3):
    """Recogniser of PP-OCRv6 tiny for a dictionary of `num_classes` characters, without attention.

    `hidden_size`: channels before the last layer. `nrtr_size` and `nrtr_depth`: see svtr_lcnetv3. The published weights are
    those without an NRTR head.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        backbone: Annotated[partial[Backbone], BACKBONES] = partial(pp_lcnet_v4, size='tiny'),
        hidden_size: int = 80,
        dropout: float = 0.1,
        nrtr_size: int | None = None,
        nrtr_depth: int = 4,
    ) -> None:
        maps = backbone(STRIDES)
        super().__init__(
            num_classes,
            maps,
            ConvNeck(maps.channels[-1], hidden_size),
            neck_channels=hidden_size,
            dropout=dropout,
            nrtr_size=nrtr_size,
            nrtr_depth=nrtr_depth,
            use_guide=False,
        )
