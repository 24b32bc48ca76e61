"""DB: a network that says of each pixel whether it is text, and above which probability that counts.

Liao et al., Real-time Scene Text Detection with Differentiable Binarization, https://arxiv.org/abs/1911.08947, with the
necks and heads of PaddleOCR. Shapes: B batch.
"""

from functools import partial
from typing import Annotated, Literal, Self

from torch import Tensor, nn

from phalanx.families.text_detection.models.heads import DBHead, PFHeadLocal
from phalanx.families.text_detection.models.maps import Maps, RefinedMaps
from phalanx.families.text_detection.models.necks import FPN, LKPAN, DepthwiseRSELayer, RSELayer
from phalanx.nn.backbones import BACKBONES, Backbone, select_maps
from phalanx.nn.backbones.lcnetv3 import merge
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3

STRIDES = (4, 8, 16, 32)  # of the maps that the neck joins
LOCAL_SHARES = {'local_small': 8, 'local_large': 4}  # see PFHeadLocal


class DB(nn.Module):
    """images [B, 3, H, W], H and W multiples of 32 -> Maps; in training, of a PFHeadLocal, RefinedMaps."""

    def __init__(self, backbone: Backbone, neck: FPN | LKPAN, head: DBHead) -> None:
        super().__init__()
        self.backbone, self.neck, self.head = backbone, neck, head
        self.maps = select_maps(backbone, STRIDES, 'db')

    def forward(self, images: Tensor) -> Maps | RefinedMaps:
        """Raises ValueError for a height or width that 32 does not divide."""
        H, W = images.shape[-2:]
        if H % STRIDES[-1] or W % STRIDES[-1]:
            raise ValueError(f'images are {W} x {H}; width and height must be multiples of {STRIDES[-1]}')
        features = self.backbone(images)
        maps: Maps | RefinedMaps = self.head(self.neck([features[place] for place in self.maps]))
        return maps

    def fuse(self) -> Self:
        """This network, which from now on computes the same with fewer convolutions but can only evaluate."""
        merge(self.eval())
        return self


def db(
    num_classes: int = 1,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(mobilenet_v3),
    neck: Literal['fpn', 'rse_fpn', 'wide_rse_fpn', 'lk_pan'] = 'fpn',
    neck_channels: int = 256,
    head: Literal['db', 'local_small', 'local_large'] = 'db',
    head_kernel: int = 3,
    steepness: float = 50,
) -> DB:
    """DB for text, the one class there is.

    Published backbones are `mobilenet_v3`, `resnet18_vd`, `resnet50_vd`, `pp_lcnet_v3` and `pp_lcnet_v4`; the last, with the
    neck `wide_rse_fpn`, is that of PP-OCRv6 small. `head_kernel` and `steepness`: see DBHead; `local_...`: see PFHeadLocal.
    Raises ValueError for another number of classes, and for a backbone without maps of strides 4 to 32.
    """
    if num_classes != 1:
        raise ValueError(f'db finds text, which is one class, not {num_classes}')
    maps = backbone(STRIDES)
    channels = [maps.channels[place] for place in select_maps(maps, STRIDES, 'db')]
    if neck == 'lk_pan':
        joined: FPN | LKPAN = LKPAN(channels, neck_channels)
    elif neck == 'wide_rse_fpn':
        joined = FPN(channels, neck_channels, RSELayer, out_layer=DepthwiseRSELayer, kernel_size=7)
    else:
        joined = FPN(channels, neck_channels) if neck == 'fpn' else FPN(channels, neck_channels, RSELayer)
    if head == 'db':
        looking = DBHead(neck_channels, kernel_size=head_kernel, steepness=steepness)
    else:
        looking = PFHeadLocal(neck_channels, share=LOCAL_SHARES[head], kernel_size=head_kernel, steepness=steepness)
    return DB(maps, joined, looking)
