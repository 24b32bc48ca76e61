"""The recognition network of PP-OCRv6 small: PP-LCNetV4, a light SVTR neck and CTC. Shapes: B batch, K characters."""

from phalanx.families.recognition.models.svtr import LightSVTRNeck
from phalanx.families.recognition.models.svtr_lcnetv3 import SVTRLCNetV3
from phalanx.nn.backbones.lcnetv4 import RECOGNITION, PPLCNetV4

STEM_CHANNELS = 48


class SVTRLCNetV4(SVTRLCNetV3):
    """images [B, 3, H, W] -> logits [B, W/8, K+1] for CTC, and those of an NRTR head, as SVTRLCNetV3 gives them."""


def svtr_lcnetv4(
    num_classes: int,
    *,
    hidden_size: int = 120,
    depth: int = 2,
    dropout: float = 0.1,
    nrtr_size: int | None = None,
    nrtr_depth: int = 4,
    use_guide: bool = True,
) -> SVTRLCNetV4:
    """The recogniser of PP-OCRv6 small for an alphabet of `num_classes` characters.

    `depth` counts the mixing blocks of the neck, which are `hidden_size` wide. `nrtr_size`, `nrtr_depth` and `use_guide` are
    those of svtr_lcnetv3: a head that learns with CTC and is not used afterwards. Published are the weights without it.
    """
    backbone = PPLCNetV4(RECOGNITION, stem_channels=STEM_CHANNELS)
    return SVTRLCNetV4(
        num_classes,
        backbone,
        LightSVTRNeck(backbone.channels[-1], hidden_size, depth=depth, dropout=dropout),
        neck_channels=hidden_size,
        dropout=dropout,
        nrtr_size=nrtr_size,
        nrtr_depth=nrtr_depth,
        use_guide=use_guide,
    )
