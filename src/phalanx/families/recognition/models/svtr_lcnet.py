"""SVTR-LCNet, the recognition network of PP-OCRv3.

Li et al., PP-OCRv3: More Attempts for the Improvement of Ultra Lightweight OCR System, https://arxiv.org/abs/2206.03001. A SAR
head guides the training of the backbone (GTC); prediction uses CTC alone. Shapes: B batch, C channels, T time steps along the
line, K characters.
"""

from functools import partial
from typing import Annotated, Self

from torch import Tensor, nn

from phalanx.families.recognition.models.blocks import HEIGHTS
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.models.sar import SARHead
from phalanx.families.recognition.models.svtr import SVTRNeck
from phalanx.families.recognition.texts import Texts
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.lcnetv3 import merge
from phalanx.nn.backbones.mobilenet_v1 import mobilenet_v1_enhance

STRIDES = ((32, 8),)  # (down, right) of the feature map that neck and SAR head take


class SVTRLCNet(TextNetwork):
    """SVTR-LCNet for a dictionary of `num_classes` characters, with the defaults of PP-OCRv3.

    `depth`: number of mixing blocks of the neck, `hidden_size`: their channels. `use_guide`: stop the gradient of CTC before
    the backbone, so that the SAR head alone trains it. Raises ValueError for a backbone without a feature map of 1/32 of the
    height and 1/8 of the width.
    """

    heads = frozenset({'ctc', 'sar'})
    heights = HEIGHTS

    def __init__(
        self,
        num_classes: int,
        *,
        backbone: Annotated[partial[Backbone], BACKBONES] = partial(mobilenet_v1_enhance),
        neck_channels: int = 64,
        depth: int = 2,
        hidden_size: int = 120,
        use_guide: bool = True,
        sar_size: int = 512,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.backbone = backbone(STRIDES)
        (self.map_index,) = select_maps(self.backbone, STRIDES, 'svtr_lcnet')
        channels = self.backbone.channels[self.map_index]
        self.neck = SVTRNeck(channels, neck_channels, depth=depth, hidden_size=hidden_size, dropout=dropout)
        self.head = nn.Linear(neck_channels, num_classes + 1)  # torch initialises it as PaddleOCR does
        self.sar = SARHead(num_classes, channels, size=sar_size, dropout=dropout)
        self.use_guide = use_guide

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        """Map images [B, 3, 48, W] to CTC logits [B, W/8, K+1] and, with texts, SAR logits [B, L, K+2]."""
        features = self.backbone(images)[self.map_index]  # [B, C, 1, T]
        # GTC: the attention head trains the backbone, CTC only its own neck.
        ctc = self.head(self.neck(features.detach() if self.use_guide else features))
        if texts is None:
            return Outputs(ctc)
        return Outputs(ctc, self.sar(features, texts), features)

    def switch_to_deploy(self) -> Self:
        """Merge re-parameterised convolutions and drop the SAR head, for evaluation only; return this network."""
        merge(self.eval())
        del self.sar
        return self
