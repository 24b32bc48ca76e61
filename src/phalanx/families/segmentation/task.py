"""Semantic segmentation: Task, samples, batches and recipe keys."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.config.bind import Part
from phalanx.data.bands import to_rgb
from phalanx.data.batch import ImageBatch, channels_first, split_evenly, stack_images
from phalanx.data.image import LabelMap
from phalanx.data.samples import Dataset, Draw, Image, Rng, Split
from phalanx.families.base import Colours, Family, FamilyKeys, check_part
from phalanx.families.export import Export, NetworkWithDecoding, describe_transform
from phalanx.families.losses import collect_weights, sum_losses
from phalanx.families.segmentation import draw as drawing
from phalanx.families.segmentation.data import DATA, Data
from phalanx.families.segmentation.inference import Inference, argmax_classes, main_logits, resize
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss import LOSSES, Mixed, PixelLoss
from phalanx.families.segmentation.loss.terms import NEEDS, build_terms, check_outputs
from phalanx.families.segmentation.metric import METRICS, Confusion
from phalanx.families.segmentation.models import MODELS
from phalanx.families.segmentation.survey import PixelSurvey, describe_presence
from phalanx.families.segmentation.transforms import TRANSFORMS, Transform, adds_padding
from phalanx.families.task import Loss
from phalanx.families.writing import Writers
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import Size
from phalanx.runtime.segmentation import MOST_LOGITS, normalise_grey
from phalanx.system.memory import constant

# Written into exported files, for users of the network without Phalanx.
READ_OUT = 'average the logits of all views, undo the transforms from last to first, then take the argmax'


@dataclass(frozen=True)
class Sample:
    """Image with its label map, and the sizes needed to undo the transforms."""

    image: Tensor  # uint8 [3, h, w] (with `data.bands` [C, h, w], uint8 or uint16), the network input before normalisation
    labels: Tensor  # uint8 [H, W]; of the size of `image` in training, of the original image in evaluation
    sizes_before: tuple[Size, ...] = ()  # of the image, before each transform
    index: int = 0  # in the data set


@dataclass(frozen=True)
class SegmentationBatch(ImageBatch):
    """Samples of one image size; label maps may differ in size."""

    pixels: Tensor  # uint8, the label maps flattened and concatenated: one tensor is one transfer between processes
    sizes: tuple[Size, ...]  # of each label map
    sizes_before: tuple[tuple[Size, ...], ...]  # of each image, before each of its transforms
    indices: tuple[int, ...]  # of the samples in the data set

    def split(self, parts: int) -> list[Self]:
        fields = (self.images, self.truths, self.sizes, self.sizes_before, self.indices)
        return [
            type(self)(images, torch.cat([label_map.flatten() for label_map in label_maps]), *others)
            for images, label_maps, *others in zip(*(split_evenly(field, parts) for field in fields), strict=True)
        ]

    def label_maps(self) -> Tensor:
        """Return the label maps [B, H, W] int64; all must have one size."""
        return torch.stack(self.truths).long()

    @property
    def truths(self) -> tuple[Tensor, ...]:
        """Label maps [H, W] uint8, one per image."""
        # Views into the one tensor, in the shapes of the label maps.
        parts = torch.split(self.pixels, [H * W for H, W in self.sizes])
        return tuple(part.view(size) for part, size in zip(parts, self.sizes, strict=True))


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    """Transformed samples of one split."""

    class_names: tuple[str, ...] = ()

    @cached_property
    def notes(self) -> Sequence[str]:
        """Raises ValueError if most label maps have values without a class."""
        return describe_presence(self.source, self.class_names, self.split)

    def __getitem__(self, draw: Draw) -> Sample:
        image, labels = self.source.read(draw)
        sample = prepare_sample(image, labels, self.transforms, draw.rng(), keep_labels=self.split == 'eval')
        return replace(sample, index=draw.index)


def prepare_sample(image: Image, labels: LabelMap, transforms: Sequence[Transform], rng: Rng, *, keep_labels: bool) -> Sample:
    """Apply `transforms` in order and return the sample.

    `keep_labels` returns the label map untransformed: metrics are computed at its original size, as in PaddleSeg.
    """
    original, sizes_before = labels, list[Size]()
    for transform in transforms:
        sizes_before.append((len(labels), labels.shape[1]))
        image, labels = transform(image, labels, rng)
    if labels.shape != image.shape[:2]:  # of a plugin's
        raise ValueError(f'transforms: the image has become {list(image.shape[:2])}, but its label map {list(labels.shape)}')
    label_map = original if keep_labels else labels
    return Sample(channels_first(image), torch.from_numpy(np.ascontiguousarray(label_map)), tuple(sizes_before))


def undo_transforms(maps: Tensor, transforms: Sequence[Transform], sizes_before: Sequence[Size], size: Size) -> Tensor:
    """Bring `maps` [C, h, w] of a transformed image back to the `size` of its label map, [C, *size].

    `sizes_before` are those of the image before each of `transforms`. As in PaddleSeg, these are undone one by one, the last
    first: padding is cut off, everything else is resized.
    """
    for transform, (H, W) in reversed(list(zip(transforms, sizes_before, strict=True))):
        maps = maps[:, :H, :W] if adds_padding(transform) else resize(maps[None], (H, W))[0]
    return resize(maps[None], size)[0]


def classify_pixels(logits: Tensor, transforms: Sequence[Transform], sizes_before: Sequence[Size], size: Size) -> Tensor:
    """Return the class of each pixel [H, W] uint8: the argmax of `logits` [K, h, w] after `undo_transforms`.

    Large images are processed in groups of classes, so that their K full-size logit maps are never in memory at once.
    """
    together = max(1, MOST_LOGITS // (size[0] * size[1]))
    if len(logits) <= together:
        return undo_transforms(logits, transforms, sizes_before, size).argmax(0).to(torch.uint8)
    # A running maximum over groups of classes; on ties the lower class wins, as with argmax.
    best = logits.new_full(size, -torch.inf)
    classes = torch.zeros(size, dtype=torch.uint8, device=logits.device)
    for first in range(0, len(logits), together):
        values, numbers = undo_transforms(logits[first : first + together], transforms, sizes_before, size).max(0)
        is_better = values > best
        best = torch.where(is_better, values, best)
        classes = torch.where(is_better, (numbers + first).to(torch.uint8), classes)
    return classes


@dataclass(frozen=True, kw_only=True)
class SegmentationKeys(FamilyKeys):
    """Recipe keys of segmentation, besides those that all families share (`FamilyKeys`).

    `loss` lists one loss per output of the network, the main output first, weighted by `loss_coefficients` (default: all 1).
    `inference` sets windows, scales and flips of evaluation and prediction. `mean` and `std` normalise RGB values. For
    `between`, the outputs of `networks` are numbered: 0 is the main one, 1 the first auxiliary one.
    """

    model: Annotated[partial[nn.Module], MODELS]
    data: Annotated[partial[Data], DATA]
    loss: tuple[Annotated[Part[PixelLoss | Mixed], LOSSES, check_part], ...]
    metric: Annotated[partial[Any], METRICS] = partial(Confusion)
    transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    eval_transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    mean: Colours = (0.5, 0.5, 0.5)
    std: Colours = (0.5, 0.5, 0.5)
    networks: dict[str, Annotated[partial[nn.Module], MODELS]] | None = None
    inference: Inference = Inference()  # noqa: RUF009 - frozen


class Segmentation(Family):
    """Segmentation Task, built from the keys of a recipe."""

    Keys = SegmentationKeys
    data_needs = ('split', 'class_names')
    network_needs, loss_needs = ('num_outputs',), NEEDS

    def __init__(self, keys: SegmentationKeys) -> None:
        super().__init__(keys)
        self.terms = build_terms([(part.name, *built) for part, built in zip(keys.loss, self.losses, strict=True)])
        self.inference = keys.inference

    def labels(self, names: Sequence[str] | None = None) -> list[Sequence[str]]:
        return [self.data().class_names if names is None else names]

    @cached_property
    def num_classes(self) -> int:
        return len(self.data().class_names)

    def model(self) -> nn.Module:
        """Build the network.

        Raises ValueError if the number of losses differs from that of the outputs, or an option of a loss does not fit the
        number of classes.
        """
        for term in self.terms:
            term.loss.check(self.num_classes)
        return self.build_network(self.num_classes)

    def check_fits(self, network: Any, role: str) -> None:
        if network.num_outputs != len(self.losses):
            raise ValueError(
                f'loss: the {role} has {network.num_outputs} outputs in training, but there are {len(self.losses)} '
                'losses; give one for each output, the main one first'
            )

    def dataset(self, split: Split) -> Samples:
        return Samples(self.source(split), self.transforms[split], split, self.data().class_names)

    def survey(self, split: Split) -> PixelSurvey:
        """Return the untransformed samples of a split, for `phalanx data check`."""
        data = self.data()
        return PixelSurvey(data.split(split), data.class_names, self.bands)

    def collate(self, samples: Sequence[Sample]) -> SegmentationBatch:
        """Batch samples. Raises ValueError if their images differ in size."""
        # Images of a batch need one size; label maps of an evaluation need not.
        sizes = {f'{sample.image.shape[2]} x {sample.image.shape[1]}' for sample in samples}
        if len(sizes) > 1:
            raise ValueError(
                f'the images of a batch differ in size ({", ".join(sorted(sizes))}): end the transforms '
                'with one that fixes the size (random_padding_crop, resize), or evaluate with evaluate.batch_size=1'
            )
        images = stack_images([sample.image for sample in samples])
        pixels = torch.cat([sample.labels.flatten() for sample in samples])
        shapes = tuple((len(sample.labels), sample.labels.shape[1]) for sample in samples)
        sizes_before, indices = zip(*((sample.sizes_before, sample.index) for sample in samples), strict=True)
        return SegmentationBatch(images, pixels, shapes, sizes_before, indices)

    def supervised_loss(self, outputs: list[Tensor], batch: SegmentationBatch, whole: WholeStep) -> Loss:
        labels = batch.label_maps()
        check_outputs(outputs, len(self.losses), self.num_classes, labels)
        # A loss of the recipe may be a mixture: one term per part.
        return sum_losses(
            ({name: loss(outputs[output], labels, whole)}, coefficient) for name, output, loss, coefficient in self.terms
        )

    def supervised_weights(self, batch: SegmentationBatch) -> dict[str, Tensor] | None:
        labels = batch.label_maps()
        known = [(term.name, term.loss.weights(labels)) for term in self.terms]
        return collect_weights(None if weight is None else {name: weight} for name, weight in known)

    @property
    def sees_whole_step(self) -> bool:
        """True if the weight of a loss depends on the outputs for the whole step, as with OHEM, Lovász and `top_k`."""
        one_pixel = torch.zeros((1, 1, 1), dtype=torch.int64)
        return any(term.loss.weights(one_pixel) is None for term in self.terms)

    def begin_prediction(self, model: nn.Module, batch: SegmentationBatch) -> Callable[[], list[Tensor]]:
        """Enqueue one class map [H, W] uint8 per image, at the size of its label map: as in PaddleSeg, logits are resized."""
        images = self.network_input(batch)
        # Padding at the end of the transforms is replaced by the exact mean colour, which bytes cannot hold (127.5).
        if self.transforms['eval'] and adds_padding(self.transforms['eval'][-1]):
            colour = tuple(normalise_grey(self.mean, self.std).tolist())
            grey = constant(colour, images.dtype, images.device).view(-1, 1, 1)
            for image, (*_, (H, W)) in zip(images, batch.sizes_before, strict=True):
                image[:, H:], image[:, :, W:] = grey, grey
        logits = self.inference(model, images)  # [B, K, h, w]
        parts = zip(logits, batch.sizes_before, batch.sizes, strict=True)
        maps = [classify_pixels(own, self.transforms['eval'], before, size) for own, before, size in parts]
        return lambda: maps

    def predictions(self, outputs: Sequence[LabelMap]) -> list[Tensor]:
        return [torch.from_numpy(class_map) for class_map in outputs]

    def metric(self) -> Any:
        return self.make_metric(self.data().class_names)

    def request(self, image: Image) -> Sample:
        labels = np.full(image.shape[:2], VOID, np.uint8)  # no ground truth: all pixels are ignored
        return prepare_sample(image, labels, self.transforms['eval'], np.random.default_rng(0), keep_labels=True)

    def results(self, prediction: list[Tensor], batch: SegmentationBatch) -> list[LabelMap]:
        # One copy to the host for all images.
        pixels = torch.split(
            torch.cat([class_map.flatten() for class_map in prediction]).cpu(), [map.numel() for map in prediction]
        )
        return [own.view(class_map.shape).numpy() for own, class_map in zip(pixels, prediction, strict=True)]

    def picture(self, sample: Sample, result: LabelMap) -> list[tuple[str, Image]]:
        size = (len(sample.labels), sample.labels.shape[1])
        # The report shows the image at its original size.
        upright = undo_transforms(sample.image.float(), self.transforms['eval'], sample.sizes_before, size).round()
        image = to_rgb(upright.permute(1, 2, 0).numpy().astype(self.bands.dtype if self.bands else np.uint8), self.bands)
        return drawing.draw_comparison(image, sample.labels.numpy(), result, self.data().class_names)

    @property
    def writers(self) -> Writers:
        return drawing.build_writers(self.labels()[0], self.bands)

    def export(self, model: nn.Module, *, post_processing: bool = False) -> Export:
        """Export the main output, or with `post_processing` its class map, for one view of an image.

        Windows, scales and flips are left to the caller. Raises ValueError for `post_processing` if the recipe has any, or
        eval_transforms: these would come between logits and class map.
        """
        preparation = {'transforms': [describe_transform(transform) for transform in self.transforms['eval']], **self.pixels}
        if post_processing and (self.transforms['eval'] or self.inference != Inference()):
            raise ValueError(
                '--with_post_processing: eval_transforms, windows, scales or flips stand between the logits and the class map; '
                'phalanx.runtime does them, a graph for one size of image cannot'
            )
        # One view: users without the runtime add windows, scales and flips themselves.
        outputs = {'logits': '[batch, classes, height, width]; the class of a pixel is that of the largest'}
        if post_processing:
            outputs = {'classes': '[batch, height, width]: the class of each pixel'}
        return Export(
            NetworkWithDecoding(model, argmax_classes if post_processing else main_logits),
            outputs,
            preparation,
            {'classes': self.data().class_names, 'inference': asdict(self.inference), 'order': READ_OUT},
            dynamic={2: 1, 3: 1},
        )
