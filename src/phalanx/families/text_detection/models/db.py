"""DB: segmentation of text with differentiable binarization.

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

STRIDES = (4, 8, 16, 32)  # of the feature maps that the neck takes
LOCAL_DIVISORS = {'local_small': 8, 'local_large': 4}  # see PFHeadLocal


class DB(nn.Module):
    """DB network: images [B, 3, H, W], H and W multiples of 32 -> Maps, or RefinedMaps from a PFHeadLocal in training."""

    def __init__(self, backbone: Backbone, neck: FPN | LKPAN, head: DBHead) -> None:
        super().__init__()
        self.backbone, self.neck, self.head = backbone, neck, head
        self.map_indices = select_maps(backbone, STRIDES, 'db')

    def forward(self, images: Tensor) -> Maps | RefinedMaps:
        """Return the maps. Raises ValueError for a height or width that is not a multiple of 32."""
        H, W = images.shape[-2:]
        if H % STRIDES[-1] or W % STRIDES[-1]:
            raise ValueError(f'images are {W} x {H}; width and height must be multiples of {STRIDES[-1]}')
        # Backbone, neck (one map of stride 4), head (maps of full size).
        features = self.backbone(images)
        maps: Maps | RefinedMaps = self.head(self.neck([features[index] for index in self.map_indices]))
        return maps

    def switch_to_deploy(self) -> Self:
        """Merge re-parameterised convolutions in place: same results, faster, but for evaluation only; return this network."""
        merge(self.eval())
        return self


def db(
    num_classes: int = 1,
    *,
    backbone: Annotated[partial[Backbone], BACKBONES] = partial(mobilenet_v3),
    neck: Literal['fpn', 'rse_fpn', 'wide_rse_fpn', 'lk_pan'] = 'fpn',
    neck_channels: int = 256,
    neck_kernel: int = 7,
    head: Literal['db', 'local_small', 'local_large'] = 'db',
    head_kernel: int = 3,
    steepness: float = 50,
) -> DB:
    """Build DB for one class, text.

    Weights are published for the backbones `mobilenet_v3`, `resnet18_vd`, `resnet50_vd`, `pp_lcnet_v3` and `pp_lcnet_v4`; the
    last, with the neck `wide_rse_fpn`, is PP-OCRv6 small, and with `size: tiny`, 64 channels and a `neck_kernel` of 5 (of that
    neck's output levels) PP-OCRv6 tiny. `head_kernel` and `steepness`: see DBHead; heads `local_...`: see
    PFHeadLocal. Raises ValueError for another number of classes, and for a backbone without feature maps of strides 4 to 32.
    """
    if num_classes != 1:
        raise ValueError(f'db detects one class, text; got {num_classes} classes')
    # Sizes of neck and head follow from the channels of the backbone.
    maps = backbone(STRIDES)
    channels = [maps.channels[index] for index in select_maps(maps, STRIDES, 'db')]
    if neck == 'lk_pan':
        built_neck: FPN | LKPAN = LKPAN(channels, neck_channels)
    elif neck == 'wide_rse_fpn':
        built_neck = FPN(channels, neck_channels, RSELayer, out_layer=DepthwiseRSELayer, kernel_size=neck_kernel)
    else:
        built_neck = FPN(channels, neck_channels) if neck == 'fpn' else FPN(channels, neck_channels, RSELayer)
    if head == 'db':
        built_head = DBHead(neck_channels, kernel_size=head_kernel, steepness=steepness)
    else:
        built_head = PFHeadLocal(neck_channels, divisor=LOCAL_DIVISORS[head], kernel_size=head_kernel, steepness=steepness)
    return DB(maps, built_neck, built_head)
