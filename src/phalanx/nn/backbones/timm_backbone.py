"""Backbones of the timm library (Apache-2.0), by their names there.

Networks with maps of several strides (ConvNeXt, EfficientNet, ResNet) return those. A plain vision transformer (ViT, DINOv2)
has one map; the simple feature pyramid of Li et al., ViTDet, https://arxiv.org/abs/2203.16527, derives the others. Shapes:
B batch, C channels.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.nn.backbones.backbone import Backbone, output_stride
from phalanx.nn.layers import Stride, initialise_convs, is_exporting
from phalanx.nn.stochastic import Dropout, DropPath
from phalanx.parallel.norms import BatchNorm2d, convert_batch_norms

PYRAMID_CHANNELS = 256  # as published
VIT_STRIDE = 16  # of the map of a transformer: images are resized so that patches of any size have this stride
TRIAL_SIZE = 896, 1344  # multiples of 14, 16 and 64 pixels, and no square
REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError, AssertionError)  # raised by timm


class TimmBackbone(nn.Module):
    """images [B, 3, H, W] -> the maps of a timm network, from fine to coarse, with `channels`.

    `weights`: source of the weights of a whole classifier, for `body`; None for random ones.
    """

    def __init__(self, body: Any, weights: str | None, *, size: tuple[int, int] | None = None) -> None:
        """`body`: timm's network with `features_only`, its batch norms and dropout replaced by ours.

        `size`: the only (height, width) that it takes; None for any.
        """
        super().__init__()
        self.body, self.weights, self.size = body, weights, size
        self.channels: tuple[int, ...] = tuple(body.feature_info.channels())
        self.strides: tuple[int, ...] = tuple(body.feature_info.reduction())

    def pad(self, images: Tensor, multiple: int) -> Tensor:
        """Pad to whole cells of the coarsest map, which later are cropped to the sizes that `Backbone` promises.

        Raises ValueError if the network takes another size only.
        """
        x = pad_to_multiple(images, multiple)
        if self.size not in (None, x.shape[-2:]):
            cure = 'give that size, or make all images of training and evaluation equal in `transforms` and `eval_transforms`'
            raise ValueError(f'model.backbone.img_size is {list(self.size)}, but an image has {list(x.shape[-2:])}; {cure}')
        return x

    def forward(self, images: Tensor) -> list[Tensor]:
        x = self.pad(images, self.strides[-1])
        return crop_padding(self.body(x), self.strides, images)


class TimmPyramid(TimmBackbone):
    """images [B, 3, H, W] -> simple feature pyramid on the last map of a plain vision transformer."""

    def __init__(
        self, body: Any, weights: str | None, *, patch: int, strides: Sequence[int], size: tuple[int, int] | None = None
    ) -> None:
        """`patch`: pixels per side of its patches; `strides`: of the pyramid maps, each 4, 8, 16 or 32."""
        super().__init__(body, weights, size=size)
        self.patch, C = patch, self.channels[-1]
        self.levels = nn.ModuleList(build_pyramid_level(C, stride) for stride in strides)
        self.channels, self.strides = (PYRAMID_CHANNELS,) * len(strides), tuple(strides)

    def forward(self, images: Tensor) -> list[Tensor]:
        x = self.pad(images, VIT_STRIDE)
        # Patches of 14 or 8 pixels: resize so that each is one cell of stride 16. (timm interpolates the position embedding.)
        if self.patch != VIT_STRIDE:
            x = F.interpolate(x, [side // VIT_STRIDE * self.patch for side in x.shape[-2:]], mode='bilinear')
        # ViTDet builds all levels from the last map alone.
        last: Tensor = self.body(x)[-1]  # [B, C, H/16, W/16]
        return crop_padding([level(last) for level in self.levels], self.strides, images)


def pad_to_multiple(images: Tensor, multiple: int) -> Tensor:
    """Pad `images` [B, 3, H, W] with zeros at the bottom and on the right to a `multiple` of pixels."""
    down, right = (-side % multiple for side in images.shape[-2:])
    if not is_exporting() and not down and not right:
        return images
    return F.pad(images, (0, right, 0, down))


def crop_padding(maps: Sequence[Tensor], strides: Sequence[int], images: Tensor) -> list[Tensor]:
    """Crop `maps` to ceil(size / stride), without padding: networks of timm round sizes differently."""
    H, W = images.shape[-2:]
    return [x[:, :, : -(-H // stride), : -(-W // stride)] for x, stride in zip(maps, strides, strict=True)]


def build_pyramid_level(in_channels: int, stride: int) -> nn.Sequential:
    """Return the layers from the map of stride 16 [B, in, h, w] to that of `stride` [B, PYRAMID_CHANNELS, ., .].

    Layer order as in ViTDet. Raises ValueError for a stride other than 4, 8, 16 and 32.
    """
    C = in_channels
    match stride:
        case 4:
            # Transposed convolutions upsample by 2 each, pooling downsamples; then a 1x1 and a 3x3 convolution.
            resized: list[nn.Module] = [nn.ConvTranspose2d(C, C // 2, 2, 2), ChannelNorm(C // 2), nn.GELU()]
            resized.append(nn.ConvTranspose2d(C // 2, C // 4, 2, 2))
            C = C // 4
        case 8:
            resized = [nn.ConvTranspose2d(C, C // 2, 2, 2)]
            C = C // 2
        case 16:
            resized = []
        case 32:
            resized = [nn.MaxPool2d(2, 2, ceil_mode=True)]
        case _:
            raise ValueError(f'a plain vision transformer has maps of strides 4, 8, 16 and 32, not {stride}')
    # Convolutions without bias, since a layer norm follows.
    out = PYRAMID_CHANNELS
    convs = [
        nn.Conv2d(C, out, 1, bias=False),
        ChannelNorm(out),
        nn.Conv2d(out, out, 3, padding=1, bias=False),
        ChannelNorm(out),
    ]
    level = nn.Sequential(*resized, *convs)
    initialise_convs(level)
    return level


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of a map [B, C, h, w] (LayerNorm2d)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, 3)).movedim(3, 1)


class BatchNormAct(BatchNorm2d):
    """Batch norm and activation in one layer, timm's BatchNormAct2d with our batch norm."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> the same
        activated: Tensor = self.act(self.drop(super().forward(x)))
        return activated


def timm_backbone(
    strides: Sequence[Stride],
    *,
    model: str,
    weights: str | None = None,
    drop_path: float = 0.0,
    img_size: tuple[int, int] | None = None,
) -> Backbone:
    """Backbone from timm, for example `model: convnext_tiny`; needs `pip install phalanx-vision[timm]`.

    `weights`: a file of a whole classifier, a URL, `hf://owner/repo`, or a tag of timm, for example `fb_in1k`; default: random
    weights. `drop_path`: probability of skipping the last block in training; it falls
    linearly to 0 at the first. `img_size`: (height, width) of all images, for networks that take one size only. Raises
    ValueError for an unknown name, and for a network without feature maps.
    """
    timm = _timm()
    if not timm.is_model(model):
        # The nearest name, for typing errors.
        near = get_close_matches(model, timm.list_models(), n=1)
        cure = f'; did you mean {near[0]!r}?' if near else ''
        raise ValueError(f'model: timm has no network {model!r}{cure} (timm.list_models() has all)')
    options: dict[str, Any] = {'drop_path_rate': drop_path} if drop_path else {}
    weights = _resolve_weights(timm, model, weights)
    options |= _size_options(timm, model, img_size)
    # Built first with default maps, since only the network itself knows the strides of its maps.
    body = _build_body(timm, model, options)
    reductions: list[int] = body.feature_info.reduction()
    if len(reductions) > 1 and len(set(reductions)) == 1:  # a plain transformer: all its blocks have one stride
        patch = reductions[0]
        if img_size is not None:  # of the network, whose input is resized
            if any(side % VIT_STRIDE for side in img_size):
                raise ValueError(
                    f'img_size: {list(img_size)} must be multiples of {VIT_STRIDE} for {model}, a plain transformer'
                )
            options['img_size'] = tuple(side // VIT_STRIDE * patch for side in img_size)
        body = _build_body(timm, model, {**options, 'out_indices': [-1]})
        steps = [step for step in strides if isinstance(step, int)]
        return TimmPyramid(body, weights, patch=patch, strides=steps, size=img_size)
    # Dilated convolutions keep the coarsest map at the stride that the network needs.
    if (coarsest := output_stride(strides)) < 32:
        options['output_stride'] = coarsest
        try:
            reductions = _build_body(timm, model, options).feature_info.reduction()
        except ValueError:
            raise ValueError(
                f"model: timm's {model} cannot keep its coarsest map at stride {coarsest} by dilated convolutions; take "
                'another backbone, or maps of stride 32 (of deeplabv3p: model.output_stride=32)'
            ) from None
    # Of several maps with one stride, the last is the deepest.
    indices = [max(place for place, step in enumerate(reductions) if step == wish) for wish in strides if wish in reductions]
    body = _build_body(timm, model, {**options, 'out_indices': indices} if indices else options)
    return TimmBackbone(body, weights, size=img_size)


def _timm() -> Any:
    if find_spec('timm') is None:
        raise ValueError('timm_backbone needs the library timm: pip install phalanx-vision[timm]')
    import timm  # optional, and slow to import

    return timm


def _size_options(timm: Any, model: str, img_size: tuple[int, int] | None) -> dict[str, Any]:
    """Options for images of any size, as Swin needs, or of `img_size` only. Raises ValueError if timm has none."""
    config = timm.get_pretrained_cfg(model)
    any_size: tuple[dict[str, Any], ...] = ({'dynamic_img_size': True}, {})
    if config is None or not config.fixed_input_size:
        fitting: dict[str, Any] | None = {}
    else:
        fitting = next((options for options in any_size if _takes(timm, model, options, TRIAL_SIZE)), None)
    if fitting is not None and img_size is not None:
        raise ValueError(f"img_size: timm's {model} takes images of any size; leave img_size out")
    if fitting is not None:
        return fitting
    if img_size is None:
        cure = 'give that of your images as img_size: [height, width], or take a network for any size, such as Swin or ConvNeXt'
        raise ValueError(f"model: timm's {model} takes images of one size only; {cure}")
    if not _takes(timm, model, {'img_size': img_size}, img_size):
        raise ValueError(f"img_size: timm's {model} cannot take images of {img_size[0]} x {img_size[1]} pixels")
    return {'img_size': img_size}


def _takes(timm: Any, model: str, options: dict[str, Any], size: tuple[int, int]) -> bool:
    """True if the network with `options` has maps of its strides for images of `size`; tried without data."""
    with suppress(*REFUSALS):
        body = timm.create_model(model, features_only=True, feature_cls='getter', pretrained=False, **options)
        maps = body.eval().to('meta')(torch.zeros(1, 3, *size, device='meta'))
        strides = body.feature_info.reduction()
        return all(
            tuple(x.shape[2:]) == tuple(side // stride for side in size) for x, stride in zip(maps, strides, strict=True)
        )
    return False


def _build_body(timm: Any, model: str, options: dict[str, Any]) -> Any:
    """Build the network of timm with feature maps as outputs and random weights. Raises ValueError when timm cannot."""
    try:
        body = timm.create_model(model, features_only=True, feature_cls='getter', pretrained=False, **options)
    except REFUSALS as error:
        listed = ', '.join(f'{name} {value}' for name, value in options.items())
        raise ValueError(f"model: timm's {model} cannot be a backbone{f' with {listed}' if listed else ''}: {error}") from None
    # Layers whose results depend on the number of ranks are replaced by ours.
    for name, module in list(body.named_modules()):
        if (own := _replacement(module)) is not None:
            body.set_submodule(name, own)
    return convert_batch_norms(body)


def _replacement(module: nn.Module) -> nn.Module | None:
    """Return our layer in place of `module` if its random numbers or statistics depend on the number of ranks, else None."""
    kind = type(module).__name__
    if kind == 'DropPath':
        return DropPath(module.drop_prob)  # type: ignore[arg-type]
    if type(module) is nn.Dropout:
        return Dropout(module.p)
    if isinstance(module, nn.BatchNorm2d) and kind.startswith('BatchNormAct'):
        own = BatchNormAct(module.num_features, eps=module.eps, momentum=module.momentum, affine=module.affine)
        own.load_state_dict(module.state_dict())
        own.drop, own.act = module.get_submodule('drop'), module.get_submodule('act')
        return own
    return None


def _resolve_weights(timm: Any, model: str, weights: str | None) -> str | None:
    """Return the address of `weights`, resolving tags of timm. Raises ValueError for an unknown tag."""
    # timm names weights MODEL.TAG, for example convnext_tiny.fb_in1k.
    tags = [name.partition('.')[2] for name in timm.list_pretrained(f'{model.partition(".")[0]}.*')]
    if weights in tags:
        config = timm.get_pretrained_cfg(f'{model.partition(".")[0]}.{weights}')
        return f'hf://{config.hf_hub_id}' if config.hf_hub_id else config.url
    if weights is not None and not any(mark in weights for mark in './:'):
        raise ValueError(f'weights: {weights!r} is not a file, a URL or one of the tags of {model} ({", ".join(tags)})')
    return weights


def find_pretrained_backbones(network: nn.Module) -> Iterator[tuple[str, TimmBackbone]]:
    """Yield the backbones of `network` that have `weights` of their own, with their names in it."""
    for name, part in network.named_modules():
        if isinstance(part, TimmBackbone) and part.weights is not None:
            yield name, part
