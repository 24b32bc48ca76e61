"""Text detection: where on an image there is text. This file is the family's table of contents, and its part of a recipe."""

from collections.abc import Sequence
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
from phalanx.families.sizing import sizing_of
from phalanx.families.task import Loss
from phalanx.families.text_detection import draw as drawing
from phalanx.families.text_detection.data import DATA, Data, Texts
from phalanx.families.text_detection.loss import LOSSES, TextDetectionLoss
from phalanx.families.text_detection.metric import METRICS, Hmean
from phalanx.families.text_detection.models import MODELS
from phalanx.families.text_detection.survey import TextSurvey
from phalanx.families.text_detection.targets import Floats, Mask, Targets, shrink_maps, threshold_maps
from phalanx.families.text_detection.transforms import MULTIPLE, TRANSFORMS, Transform, TransformContext
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import check_batch
from phalanx.runtime.results import TextRegion
from phalanx.runtime.text_detection import Scoring, Shape, text_regions

READ_OUT = (
    'connected regions of the map above `threshold`, the first `max_candidates`; each as its smallest rectangle (quad) or '
    'outline (polygon); those whose mean probability is at least `box_threshold`; moved outward by area * `unclip_ratio` / '
    'length with round corners; then scaled to the image, rounded to whole pixels and clipped to it'
)


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """How the outlines of texts become the maps that the network learns."""

    shrink_ratio: float = 0.4
    """Texts are shrunk by area * (1 - shrink_ratio^2) / length pixels, and their borders reach as far."""
    min_text_size: int = 8
    """Texts narrower or lower than so many pixels are not learnt."""
    threshold_min: float = 0.3
    """The value of the threshold map far from borders."""
    threshold_max: float = 0.7
    """Its value on a border."""

    def __post_init__(self) -> None:
        if not 0 < self.shrink_ratio < 1:
            raise ValueError(f'shrink_ratio must lie between 0 and 1, got {self.shrink_ratio}')
        if not 0 <= self.threshold_min <= self.threshold_max <= 1:
            raise ValueError(f'thresholds must rise within 0 and 1, got {self.threshold_min}, {self.threshold_max}')

    def maps(self, texts: Texts, height: int, width: int) -> Targets[Mask | Floats]:
        """The targets of an image with `texts`."""
        least, most = self.threshold_min, self.threshold_max
        return Targets(
            *shrink_maps(texts, height, width, ratio=self.shrink_ratio, least=self.min_text_size),
            *threshold_maps(texts, height, width, ratio=self.shrink_ratio, least=least, most=most),
        )


@dataclass(frozen=True, kw_only=True)
class PostProcessing:
    """How the map of a network becomes texts."""

    threshold: float = 0.3
    """Pixels that are more probable belong to a text."""
    box_threshold: float = 0.6
    """The least mean probability within a text."""
    max_candidates: int = 1000
    """How many regions of an image are looked at."""
    unclip_ratio: float = 1.5
    """How far texts are widened, which the network learnt shrunk: by area * unclip_ratio / length pixels."""
    shape: Shape = 'quad'
    """Rectangles, turned as the text is, or outlines that follow curved text."""
    scoring: Scoring = 'fast'
    """Where the mean probability is taken: in the rectangle, or `slow`, within the contour."""
    dilate: bool = False
    """Regions a pixel larger first, so that near ones become one."""

    def __post_init__(self) -> None:
        check_probability('threshold', self.threshold)
        check_probability('box_threshold', self.box_threshold)
        if self.max_candidates < 1 or self.unclip_ratio <= 0:
            given = f'{self.max_candidates} and {self.unclip_ratio}'
            raise ValueError(f'max_candidates must be at least 1 and unclip_ratio above 0, got {given}')


@dataclass(frozen=True)
class Sample:
    image: Tensor  # uint8 [3, h, w], what the network will see
    targets: tuple[Tensor, ...]  # Targets, [h, w] each; none in evaluation
    truth: Texts  # in evaluation in pixels of the image as it was read
    index: int  # the number of the sample in its data set
    size: tuple[int, int]  # (height, width) of the image as it was read


@dataclass(frozen=True)
class TextBatch(ImageBatch):
    """Samples filled up to one size with black; what was added is ignored."""

    targets: Tensor  # float32 [B, 4, H, W], Targets; [B, 0, H, W] in evaluation
    fitted: tuple[tuple[int, int], ...]  # (height, width) of each image in `images`
    truths: tuple[Texts, ...]
    sizes: tuple[tuple[int, int], ...]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    options: TargetOptions

    def __getitem__(self, draw: Draw) -> Sample:
        image, texts = self.source.read(draw)
        if self.split == 'eval':
            return prepared(image, texts, self.transforms, draw)
        size, rng = image.shape[:2], draw.rng()
        context = TransformContext(rng, lambda: self.source.read(Draw(int(rng.integers(len(self))))))
        for transform in self.transforms:
            image, texts = transform(image, texts, context)
        maps = self.options.maps(texts, *image.shape[:2])
        return Sample(channels_first(image), tuple(map(torch.from_numpy, maps)), texts, draw.index, size)


def prepared(image: Image, texts: Texts, transforms: Sequence[Transform], draw: Draw) -> Sample:
    """The sample to evaluate or predict `image`, whose texts stay where they are."""
    seen, context = image, TransformContext(draw.rng(), lambda: (image, Texts()))
    for transform in transforms:
        seen, _ = transform(seen, Texts(), context)
    return Sample(channels_first(seen), (), texts, draw.index, image.shape[:2])


@dataclass(frozen=True, kw_only=True)
class TextDetectionKeys(FamilyKeys):
    """The keys of a recipe of text detection.

    `mean` and `std` are those of BGR values, in that order: the published weights were trained with the numbers that ImageNet
    has for RGB. What all families have: `FamilyKeys`.
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
    """The Task, made from the keys of a recipe."""

    Keys = TextDetectionKeys
    channels = 'BGR'

    def __init__(self, keys: TextDetectionKeys) -> None:
        super().__init__(keys)
        self.targets, self.post_processing = keys.targets, keys.post_processing

    def model(self) -> nn.Module:
        return self.build_network(1)

    def dataset(self, split: Split) -> Samples:
        return Samples(self.source(split), self.transforms[split], split, self.targets)

    def survey(self, split: Split) -> TextSurvey:
        """The samples of a split as they lie in their files, for `phalanx data check`."""
        return TextSurvey(self.data().split(split), self.targets.min_text_size)

    def collate(self, samples: Sequence[Sample]) -> TextBatch:
        images = [sample.image for sample in samples]
        return TextBatch(
            images=pad_to_common_size(images),
            targets=pad_to_common_size([stacked_targets(sample) for sample in samples]),
            fitted=tuple((int(image.shape[1]), int(image.shape[2])) for image in images),
            truths=tuple(sample.truth for sample in samples),
            sizes=tuple(sample.size for sample in samples),
            indices=tuple(sample.index for sample in samples),
        )

    def align(self, batch: TextBatch, whole: WholeStep) -> TextBatch:
        """Filled up to the largest size on any rank: with less, norms would see how the step is shared."""
        if self.has_fixed_size:
            return batch
        height, width = whole.largest(batch.images.shape[2:])
        added = (0, width - batch.images.shape[3], 0, height - batch.images.shape[2])
        return replace(batch, images=F.pad(batch.images, added), targets=F.pad(batch.targets, added))

    def supervised_loss(self, outputs: Any, batch: TextBatch, whole: WholeStep) -> Loss:
        targets = Targets(*batch.targets.unbind(1))
        return sum_losses((loss(outputs, targets, whole), coefficient) for loss, coefficient in self.losses)

    def supervised_weights(self, batch: TextBatch) -> dict[str, Tensor] | None:
        targets = Targets(*batch.targets.unbind(1))
        return collect_weights(loss.weights(targets) for loss, _ in self.losses)

    @property
    def sees_whole_step(self) -> bool:
        one_pixel = Targets(*torch.zeros(4, 1, 1, 1))
        return any(loss.weights(one_pixel) is None for loss, _ in self.losses)

    def predict(self, model: nn.Module, batch: TextBatch) -> list[list[TextRegion]]:
        """What is found on each image, in its own pixels."""
        maps = shrink_map(model(self.network_input(batch))).float().cpu().numpy()
        options = asdict(self.post_processing)
        rows = zip(maps, batch.fitted, batch.sizes, strict=True)
        return [text_regions(one[:h, :w], (W, H), **options) for one, (h, w), (H, W) in rows]

    def metric(self) -> Any:
        return self.make_metric()

    def request(self, image: Image) -> Sample:
        return prepared(image, Texts(), self.transforms['eval'], Draw(0, 0, 0, 0))

    def picture(self, sample: Sample, result: list[TextRegion]) -> list[tuple[str, Image]]:
        return drawing.compared(sample.image.permute(1, 2, 0).numpy(), sample.size, sample.truth, result)

    writers = drawing.WRITERS

    def export(self, model: nn.Module, *, post_processing: bool = False) -> Export:
        """The map of the network; finding outlines on it is the caller's. Raises ValueError for `post_processing`."""
        if post_processing:
            raise ValueError('--with_post_processing: the contours of text cannot be found within a graph; export without it')
        varies = sizing_of(self.transforms['eval']) != 'one'
        return Export(
            NetworkWithDecoding(model, shrink_map),
            {'probabilities': '[batch, height, width]: of each pixel, that it lies within a shrunk text'},
            {
                'transforms': [describe_transform(transform) for transform in self.transforms['eval']],
                'filled_up': f'on the right and at the bottom with black, to multiples of {MULTIPLE}; no texts are there',
                'multiple_of': MULTIPLE,
                **self.pixels,
            },
            {'post_processing': asdict(self.post_processing), 'order': READ_OUT},
            dynamic={2: MULTIPLE, 3: MULTIPLE} if varies else {},
        )


def shrink_map(outputs: Any) -> Tensor:
    """The probabilities [B, H, W] among the outputs of a network."""
    shrink: Tensor = outputs.shrink[:, 0]
    return shrink


def stacked_targets(sample: Sample) -> Tensor:
    """float32 [4, h, w], or [0, h, w] where there are none."""
    if not sample.targets:
        return torch.zeros(0, *sample.image.shape[1:])
    return torch.stack([target.float() for target in sample.targets])


def pad_to_common_size(images: Sequence[Tensor]) -> Tensor:
    """[B, C, H, W]: images [C, h, w] at the upper left of zeros, of the least size for all that 32 divides.

    Raises TooLargeError.
    """
    H, W = (-(-max(image.shape[axis] for image in images) // MULTIPLE) * MULTIPLE for axis in (1, 2))
    check_batch(len(images), H, W)
    return torch.stack([F.pad(image, (0, W - image.shape[2], 0, H - image.shape[1])) for image in images])
