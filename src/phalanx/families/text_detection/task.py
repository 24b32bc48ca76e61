"""Task and recipe keys of text detection: finds the texts of an image as polygons."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.config.options import check_probability
from phalanx.data.batch import ImageBatch, channels_first
from phalanx.data.samples import Dataset, Draw, Image, Split
from phalanx.families.base import Colours, Family, FamilyKeys, check_part
from phalanx.families.export import Export, NetworkWithDecoding, describe_transform
from phalanx.families.losses import collect_weights, sum_losses
from phalanx.families.outputs import check_fields
from phalanx.families.sizing import sizing_of
from phalanx.families.task import Loss
from phalanx.families.text_detection import draw as drawing
from phalanx.families.text_detection.data import DATA, Data, Texts
from phalanx.families.text_detection.loss import LOSSES, TextDetectionLoss
from phalanx.families.text_detection.metric import METRICS, Hmean
from phalanx.families.text_detection.models import MODELS
from phalanx.families.text_detection.survey import PageSurvey
from phalanx.families.text_detection.targets import Floats, Mask, Targets, make_shrink_maps, make_threshold_maps
from phalanx.families.text_detection.transforms import MULTIPLE, TRANSFORMS, Transform, TransformContext, join_crops
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import check_batch
from phalanx.runtime.results import TextRegion
from phalanx.runtime.text_detection import Scoring, Shape, text_regions
from phalanx.system.memory import AsyncCopy

POST_PROCESSING_STEPS = (
    'take the connected regions of the map above `threshold`, at most `max_candidates`; take the minimum-area rectangle (quad) '
    'or the outline (polygon) of each; keep those whose mean probability is at least `box_threshold`; unclip: move outlines '
    'outward by area * `unclip_ratio` / length with round corners; scale to the image, round to integer pixels and clip'
)


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Options of the target maps of DB."""

    shrink_ratio: float = 0.4
    """Texts are shrunk, and for the threshold map dilated, by area * (1 - shrink_ratio^2) / length pixels."""
    min_text_size: int = 8
    """Minimum width and height of a text in pixels; smaller ones are masked out of the loss."""
    threshold_min: float = 0.3
    """Value of the threshold map far from borders."""
    threshold_max: float = 0.7
    """Value of the threshold map on a border."""

    def __post_init__(self) -> None:
        if not 0 < self.shrink_ratio < 1:
            raise ValueError(f'shrink_ratio must be above 0 and below 1, got {self.shrink_ratio}')
        if not 0 <= self.threshold_min <= self.threshold_max <= 1:
            raise ValueError(
                f'thresholds must satisfy 0 <= min <= max <= 1, got min {self.threshold_min}, max {self.threshold_max}'
            )

    def maps(self, texts: Texts, height: int, width: int) -> Targets[Mask | Floats]:
        """Return the targets of an image with `texts`."""
        return Targets(
            *make_shrink_maps(texts, height, width, ratio=self.shrink_ratio, min_size=self.min_text_size),
            *make_threshold_maps(
                texts, height, width, ratio=self.shrink_ratio, low=self.threshold_min, high=self.threshold_max
            ),
        )


@dataclass(frozen=True, kw_only=True)
class PostProcessing:
    """Options of the post-processing that turns the map of a network into outlines."""

    threshold: float = 0.3
    """Minimum probability of a text pixel."""
    box_threshold: float = 0.6
    """Minimum mean probability of the pixels of a text."""
    max_candidates: int = 1000
    """Maximum number of regions per image."""
    unclip_ratio: float = 1.5
    """Detected texts, which the network learned shrunk, are dilated by area * unclip_ratio / length pixels."""
    shape: Shape = 'quad'
    """`quad`: rotated rectangles; `polygon`: outlines that follow curved text."""
    scoring: Scoring = 'fast'
    """Area of the mean probability: `fast`, the rectangle; `slow`, the contour."""
    dilate: bool = False
    """Dilate regions by a pixel first, which joins neighbouring ones."""

    def __post_init__(self) -> None:
        check_probability('threshold', self.threshold)
        check_probability('box_threshold', self.box_threshold)
        if self.max_candidates < 1 or self.unclip_ratio <= 0:
            values = f'{self.max_candidates} and {self.unclip_ratio}'
            raise ValueError(f'max_candidates must be at least 1 and unclip_ratio above 0, got {values}')


@dataclass(frozen=True)
class Sample:
    """One transformed page."""

    image: Tensor  # uint8 [3, h, w], input of the network before normalisation
    targets: Targets[Tensor] | None  # [h, w] each: uint8, the threshold map float32; None in evaluation
    truth: Texts  # in evaluation in pixels of the original image
    index: int  # of the sample in its data set
    size: tuple[int, int]  # (height, width) of the original image


@dataclass(frozen=True)
class TextBatch(ImageBatch):
    """Batch of pages, padded with black to one size; the padding is masked out of the loss."""

    masks: Tensor  # uint8 [B, 3, H, W]: the targets that are 0 or 1; [B, 0, H, W] in evaluation
    thresholds: Tensor  # float32 [B, 1, H, W]: the threshold map; [B, 0, H, W] in evaluation
    fitted: tuple[tuple[int, int], ...]  # (height, width) of each image in `images`, without padding
    truths: tuple[Texts, ...]
    sizes: tuple[tuple[int, int], ...]
    indices: tuple[int, ...]

    @property
    def targets(self) -> Targets[Tensor]:
        """Targets of the loss, float32 [B, H, W] each: masks travel as bytes and become numbers on the device."""
        shrink_map, shrink_mask, threshold_mask = self.masks.float().unbind(1)
        return Targets(shrink_map, shrink_mask, self.thresholds[:, 0], threshold_mask)


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    """Samples of one split, transformed and with targets."""

    options: TargetOptions

    def __getitem__(self, draw: Draw) -> Sample:
        image, texts = self.source.read(draw)
        if self.split == 'eval':
            return prepare_sample(image, texts, self.transforms, draw)
        # One generator per sample: transforms and the choice of other pages draw from it in turn.
        size, rng = image.shape[:2], draw.rng()
        context = TransformContext(rng, lambda: self.source.read(Draw(int(rng.integers(len(self))))))
        for transform in self.transforms:
            image, texts = transform(image, texts, context)
        # Targets are made by the loader workers: drawing polygons is work for a CPU.
        maps = self.options.maps(texts, *image.shape[:2])
        return Sample(channels_first(image), Targets(*map(torch.from_numpy, maps)), texts, draw.index, size)


def prepare_sample(image: Image, texts: Texts, transforms: Sequence[Transform], draw: Draw) -> Sample:
    """Return the sample to evaluate or predict `image`; its texts stay in pixels of the original image."""
    # Transforms see no texts: those that crop around texts do not belong in an evaluation.
    transformed, context = image, TransformContext(draw.rng(), lambda: (image, Texts()))
    for transform in transforms:
        transformed, _ = transform(transformed, Texts(), context)
    return Sample(channels_first(transformed), None, texts, draw.index, image.shape[:2])


@dataclass(frozen=True, kw_only=True)
class TextDetectionKeys(FamilyKeys):
    """Keys of a text detection recipe, besides those of all families (`FamilyKeys`).

    `mean`, `std`: of BGR values, in this order; the published weights were trained with ImageNet's RGB values for BGR.
    """

    model: Annotated[partial[nn.Module], MODELS]
    data: Annotated[partial[Data], DATA]
    loss: tuple[Annotated[partial[TextDetectionLoss], LOSSES, check_part], ...]
    metric: Annotated[partial[Any], METRICS] = partial(Hmean)
    transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    eval_transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    mean: Colours = (0.485, 0.456, 0.406)
    std: Colours = (0.229, 0.224, 0.225)
    networks: dict[str, Annotated[partial[nn.Module], MODELS]] | None = None
    targets: TargetOptions = TargetOptions()
    post_processing: PostProcessing = PostProcessing()


class TextDetection(Family):
    """Task of text detection."""

    Keys = TextDetectionKeys
    channels = 'BGR'

    def __init__(self, keys: TextDetectionKeys) -> None:
        super().__init__(keys)
        self.targets, self.post_processing = keys.targets, keys.post_processing

    def model(self) -> nn.Module:
        return self.build_network(1)

    def dataset(self, split: Split) -> Samples:
        return Samples(self.source(split), join_crops(self.transforms[split]), split, self.targets)

    def survey(self, split: Split) -> PageSurvey:
        """Return statistics of the samples of a split as stored, for `phalanx data check`."""
        return PageSurvey(self.data().split(split), self.targets.min_text_size)

    def collate(self, samples: Sequence[Sample]) -> TextBatch:
        images = [sample.image for sample in samples]
        size = common_size(images)
        # All samples of a batch have targets, or none.
        targets = [sample.targets for sample in samples if sample.targets is not None]
        none: list[tuple[Tensor, ...]] = [()] * len(samples)
        masks = [(each.shrink_map, each.shrink_mask, each.threshold_mask) for each in targets] or none
        thresholds = [(each.threshold_map,) for each in targets] or none
        return TextBatch(
            images=join_planes([image.unbind() for image in images], size, torch.uint8),
            masks=join_planes(masks, size, torch.uint8),
            thresholds=join_planes(thresholds, size, torch.float32),
            fitted=tuple((int(image.shape[1]), int(image.shape[2])) for image in images),
            truths=tuple(sample.truth for sample in samples),
            sizes=tuple(sample.size for sample in samples),
            indices=tuple(sample.index for sample in samples),
        )

    def align(self, batch: TextBatch, whole: WholeStep) -> TextBatch:
        """Pad to the largest size on any rank: otherwise batch-norm statistics would depend on the sharding of the step."""
        if self.has_fixed_size:
            return batch
        height, width = whole.largest(batch.images.shape[2:])
        # Padding has target mask 0, so it does not count in the loss.
        added = (0, width - batch.images.shape[3], 0, height - batch.images.shape[2])
        images, masks, thresholds = (F.pad(part, added) for part in (batch.images, batch.masks, batch.thresholds))
        return replace(batch, images=images, masks=masks, thresholds=thresholds)

    def supervised_loss(self, outputs: Any, batch: TextBatch, whole: WholeStep) -> Loss:
        targets = batch.targets
        return sum_losses((loss(outputs, targets, whole), coefficient) for loss, coefficient in self.losses)

    def supervised_weights(self, batch: TextBatch) -> dict[str, Tensor] | None:
        targets = batch.targets
        return collect_weights(loss.weights(targets) for loss, _ in self.losses)

    @property
    def sees_whole_step(self) -> bool:
        # Which losses need the whole step does not depend on the targets, so one pixel suffices to ask them.
        one_pixel = Targets(*torch.zeros(4, 1, 1, 1))
        return any(loss.weights(one_pixel) is None for loss, _ in self.losses)

    def begin_prediction(self, model: nn.Module, batch: TextBatch) -> Callable[[], list[list[TextRegion]]]:
        """Begin to detect the texts on each image, in pixels of the original image."""
        outputs, (B, _, H, W) = model(self.network_input(batch)), batch.images.shape
        check_fields('evaluation', outputs, {'shrink': (B, 1, H, W)})
        maps, options = AsyncCopy(shrink_map(outputs).float()), asdict(self.post_processing)

        def finish() -> list[list[TextRegion]]:
            # Outlines are searched on each map without the padding of the batch.
            rows = zip(maps.read().numpy(), batch.fitted, batch.sizes, strict=True)
            return [text_regions(each[:h, :w], (W, H), **options) for each, (h, w), (H, W) in rows]

        return finish

    def metric(self) -> Any:
        return self.make_metric()

    def request(self, image: Image) -> Sample:
        return prepare_sample(image, Texts(), self.transforms['eval'], Draw(0, 0, 0, 0))

    def picture(self, sample: Sample, result: list[TextRegion]) -> list[tuple[str, Image]]:
        return drawing.draw_comparison(sample.image.permute(1, 2, 0).numpy(), sample.size, sample.truth, result)

    writers = drawing.WRITERS

    def export(self, model: nn.Module, *, post_processing: bool = False) -> Export:
        """Export the shrink map; the caller finds outlines on it. Raises ValueError for `post_processing`."""
        if post_processing:
            raise ValueError('--with_post_processing: a graph cannot find the contours of texts; export without it')
        # Sizes are fixed in the graph only if all images get the same one.
        varies = sizing_of(self.transforms['eval']) != 'one'
        return Export(
            NetworkWithDecoding(model, shrink_map),
            {'probabilities': '[batch, height, width]: of each pixel, that it is inside a shrunk text'},
            {
                'transforms': [describe_transform(transform) for transform in self.transforms['eval']],
                'filled_up': f'on the right and at the bottom with black, to multiples of {MULTIPLE}; ignore texts found there',
                'multiple_of': MULTIPLE,
                **self.pixels,
            },
            {'post_processing': asdict(self.post_processing), 'order': POST_PROCESSING_STEPS},
            dynamic={2: MULTIPLE, 3: MULTIPLE} if varies else {},
        )


def shrink_map(outputs: Any) -> Tensor:
    """Return the shrink map [B, H, W] of the outputs of a network."""
    shrink: Tensor = outputs.shrink[:, 0]
    return shrink


def common_size(images: Sequence[Tensor]) -> tuple[int, int]:
    """Return the smallest height and width that fit all `images` [C, h, w], in multiples of 32. Raises TooLargeError."""
    # The coarsest stride of the backbone.
    H, W = (-(-max(image.shape[axis] for image in images) // MULTIPLE) * MULTIPLE for axis in (1, 2))
    check_batch(len(images), H, W)
    return H, W


def join_planes(samples: Sequence[tuple[Tensor, ...]], size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Copy planes [h, w], C per sample, into one tensor [B, C, *size], 0 at right and bottom.

    Each plane is copied once: as float32 stacks padded one by one, the targets took a third of the time of a sample.
    """
    joined = torch.zeros(len(samples), len(samples[0]), *size, dtype=dtype)
    for own, planes in zip(joined, samples, strict=True):
        for channel, plane in zip(own, planes, strict=True):
            channel[: plane.shape[0], : plane.shape[1]] = plane
    return joined
