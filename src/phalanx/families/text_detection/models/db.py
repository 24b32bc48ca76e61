"""DB: a network that says of each pixel whether it is text, and above which probability that counts.

Liao et al., Real-time Scene Text Detection with Differentiable Binarization, https://arxiv.org/abs/1911.08947, with the
backbones, necks and heads of PaddleOCR. Shapes: B batch.
"""

from typing import Literal, Self

from torch import Tensor, nn

from phalanx.families.text_detection.models.heads import DBHead, LocalHead
from phalanx.families.text_detection.models.maps import Maps, RefinedMaps
from phalanx.families.text_detection.models.necks import FPN, LKPAN, ResidualSqueeze, WideSqueeze
from phalanx.nn.backbones.lcnetv3 import DETECTION, PPLCNetV3, merge
from phalanx.nn.backbones.lcnetv4 import DETECTION as V4_DETECTION
from phalanx.nn.backbones.lcnetv4 import PPLCNetV4
from phalanx.nn.backbones.mobilenet_v3 import MobileNetV3
from phalanx.nn.backbones.resnet_vd import ResNetVD, resnet18_vd, resnet50_vd
from phalanx.nn.layers import initialise_as_paddle

MULTIPLE = 32  # of height and width: the coarsest map is of that share
NARROWED = (16, 24, 56, 480)  # the channels that DB takes of PP-LCNetV3, at scale 1
SCALES = {'mobilenet_v3': 0.5, 'pp_lcnet_v3': 0.75}  # as published
STEM_CHANNELS = 24  # of PP-LCNetV4
LOCAL_SHARES = {'local_small': 8, 'local_large': 4}  # see LocalHead


class NarrowedLCNetV3(PPLCNetV3):
    """The same with fewer channels in its maps, but those of the finest."""

    def __init__(self, *, scale: float, merged: bool) -> None:
        super().__init__(DETECTION, scale=scale, merged=merged)
        wide, self.channels = self.channels, tuple(int(channels * scale) for channels in NARROWED)
        self.narrow = nn.ModuleList(nn.Conv2d(*each, 1) for each in zip(wide, self.channels, strict=True))
        initialise_as_paddle(self.narrow)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [narrow(x) for narrow, x in zip(self.narrow, super().forward(images), strict=True)]


Backbone = MobileNetV3 | ResNetVD | NarrowedLCNetV3 | PPLCNetV4


class DB(nn.Module):
    """images [B, 3, H, W], H and W multiples of 32 -> Maps; in training, of a LocalHead, RefinedMaps."""

    def __init__(self, backbone: Backbone, neck: FPN | LKPAN, head: DBHead) -> None:
        super().__init__()
        self.backbone, self.neck, self.head = backbone, neck, head

    def forward(self, images: Tensor) -> Maps | RefinedMaps:
        """Raises ValueError for a height or width that 32 does not divide."""
        H, W = images.shape[-2:]
        if H % MULTIPLE or W % MULTIPLE:
            raise ValueError(f'images are {W} x {H}; width and height must be multiples of {MULTIPLE}')
        maps: Maps | RefinedMaps = self.head(self.neck(self.backbone(images)))
        return maps

    def fuse(self) -> Self:
        """This network, which from now on computes the same with fewer convolutions but can only evaluate."""
        merge(self.eval())
        return self


def db(
    num_classes: int = 1,
    *,
    backbone: Literal['mobilenet_v3', 'resnet18_vd', 'resnet50_vd', 'pp_lcnet_v3', 'pp_lcnet_v4'] = 'mobilenet_v3',
    scale: float | None = None,
    squeeze: bool = True,
    merged: bool = False,
    neck: Literal['fpn', 'rse_fpn', 'wide_rse_fpn', 'lk_pan'] = 'fpn',
    neck_channels: int = 256,
    head: Literal['db', 'local_small', 'local_large'] = 'db',
    head_kernel: int = 3,
    steepness: float = 50,
) -> DB:
    """DB for text, the one class there is.

    `scale`: the channels of `mobilenet_v3` and `pp_lcnet_v3`, as a share of the published ones; without it 0.5 and 0.75.
    `squeeze`: whether blocks of `mobilenet_v3` weigh their channels. `merged`: `pp_lcnet_v3` as it is in exported files, with
    one convolution where there are several in training. `pp_lcnet_v4` and `wide_rse_fpn` are the backbone and the neck of
    PP-OCRv6 small. `head_kernel` and `steepness`: see DBHead; `local_...`: see LocalHead.
    Raises ValueError for another number of classes, and for an option beside a backbone that has it not.
    """
    if num_classes != 1:
        raise ValueError(f'db finds text, which is one class, not {num_classes}')
    for name, given, owners in (
        ('scale', scale is not None, tuple(SCALES)),
        ('squeeze', not squeeze, ('mobilenet_v3',)),
        ('merged', merged, ('pp_lcnet_v3',)),
    ):
        if given and backbone not in owners:
            raise ValueError(f'{name} is an option of {" and ".join(owners)}; {backbone} has none')
    size = scale or SCALES.get(backbone, 1.0)
    if backbone == 'mobilenet_v3':
        maps: Backbone = MobileNetV3(scale=size, squeeze=squeeze)
    elif backbone == 'pp_lcnet_v3':
        maps = NarrowedLCNetV3(scale=size, merged=merged)
    elif backbone == 'pp_lcnet_v4':
        maps = PPLCNetV4(V4_DETECTION, stem_channels=STEM_CHANNELS)
    else:
        maps = resnet18_vd() if backbone == 'resnet18_vd' else resnet50_vd(output_stride=32)
    if neck == 'lk_pan':
        joined: FPN | LKPAN = LKPAN(maps.channels, neck_channels)
    elif neck == 'wide_rse_fpn':
        joined = FPN(maps.channels, neck_channels, ResidualSqueeze, out_layer=WideSqueeze, kernel_size=7)
    else:
        joined = FPN(maps.channels, neck_channels) if neck == 'fpn' else FPN(maps.channels, neck_channels, ResidualSqueeze)
    if head == 'db':
        looking = DBHead(neck_channels, kernel_size=head_kernel, steepness=steepness)
    else:
        looking = LocalHead(neck_channels, share=LOCAL_SHARES[head], kernel_size=head_kernel, steepness=steepness)
    return DB(maps, joined, looking)
