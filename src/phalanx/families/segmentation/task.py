"""Segmentation: a class for every pixel. This file is the family's table of contents, and its part of a recipe."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.config.bind import Part
from phalanx.data.batch import ImageBatch, channels_first, shares, stacked
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
from phalanx.families.segmentation.loss.terms import build_terms
from phalanx.families.segmentation.metric import METRICS, Confusion
from phalanx.families.segmentation.models import MODELS
from phalanx.families.segmentation.survey import PixelSurvey
from phalanx.families.segmentation.transforms import TRANSFORMS, Transform, adds_padding
from phalanx.families.task import Loss
from phalanx.families.writing import Writers
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import Size
from phalanx.runtime.segmentation import MOST_LOGITS, grey_after

READ_OUT = 'logits of all views are averaged, then brought back through the transforms, the last first, then the class is taken'


@dataclass(frozen=True)
class Sample:
    image: Tensor  # uint8 [3, h, w], what the network will see
    labels: Tensor  # uint8 [H, W]; in training as large as `image`, in evaluation as the image was before its transforms
    way: tuple[Size, ...] = ()  # the size before each transform
    index: int = 0  # the number of the sample in its data set


@dataclass(frozen=True)
class SegmentationBatch(ImageBatch):
    """Samples of one image size; label maps may differ in size."""

    pixels: Tensor  # uint8, the label maps one after the other: as one tensor they travel between processes at one go
    sizes: tuple[Size, ...]  # of each label map
    ways: tuple[tuple[Size, ...], ...]  # of each image, its sizes before each transform
    indices: tuple[int, ...]

    def split(self, parts: int) -> list[Self]:
        fields = (self.images, self.truths, self.sizes, self.ways, self.indices)
        return [
            type(self)(images, torch.cat([label_map.flatten() for label_map in label_maps]), *others)
            for images, label_maps, *others in zip(*(shares(field, parts) for field in fields), strict=True)
        ]

    def label_maps(self) -> Tensor:
        """The label maps [B, H, W] int64, where all have one size."""
        return torch.stack(self.truths).long()

    @property
    def truths(self) -> tuple[Tensor, ...]:
        """The label map [H, W] of each image."""
        parts = torch.split(self.pixels, [H * W for H, W in self.sizes])
        return tuple(part.view(size) for part, size in zip(parts, self.sizes, strict=True))


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    def __getitem__(self, draw: Draw) -> Sample:
        image, labels = self.source.read(draw)
        sample = prepare_sample(image, labels, self.transforms, draw.rng(), keep_labels=self.split == 'eval')
        return replace(sample, index=draw.index)


def prepare_sample(image: Image, labels: LabelMap, transforms: Sequence[Transform], rng: Rng, *, keep_labels: bool) -> Sample:
    """The sample that `transforms` make; `keep_labels`: leave the label map as it was, on which the originals evaluate."""
    original, way = labels, list[Size]()
    for transform in transforms:
        way.append((len(labels), labels.shape[1]))
        image, labels = transform(image, labels, rng)
    kept = original if keep_labels else labels
    return Sample(channels_first(image), torch.from_numpy(np.ascontiguousarray(kept)), tuple(way))


def undo_transforms(maps: Tensor, transforms: Sequence[Transform], way: Sequence[Size], size: Size) -> Tensor:
    """`maps` [C, h, w] of an image that took its `way` through `transforms`, at the `size` of its label map, [C, *size].

    As in PaddleSeg, transforms are undone one by one: what was filled up is cut off, all else is resized.
    """
    for transform, (H, W) in reversed(list(zip(transforms, way, strict=True))):
        maps = maps[:, :H, :W] if adds_padding(transform) else resize(maps[None], (H, W))[0]
    return resize(maps[None], size)[0]


def classify_pixels(logits: Tensor, transforms: Sequence[Transform], way: Sequence[Size], size: Size) -> Tensor:
    """The class of each pixel [H, W] uint8, of `logits` [K, h, w] brought back to `size` as `undo_transforms` does.

    Some classes at a time, so that a large image does not need all K logits of all its pixels at once.
    """
    together = max(1, MOST_LOGITS // (size[0] * size[1]))
    if len(logits) <= together:
        return undo_transforms(logits, transforms, way, size).argmax(0).to(torch.uint8)
    best = logits.new_full(size, -torch.inf)
    classes = torch.zeros(size, dtype=torch.uint8, device=logits.device)
    for first in range(0, len(logits), together):
        values, numbers = undo_transforms(logits[first : first + together], transforms, way, size).max(0)
        is_better = values > best
        best = torch.where(is_better, values, best)
        classes = torch.where(is_better, (numbers + first).to(torch.uint8), classes)
    return classes


@dataclass(frozen=True, kw_only=True)
class SegmentationKeys(FamilyKeys):
    """The keys of a recipe of segmentation.

    `loss` lists one for each output of the network, the main one first, each times its one of `loss_coefficients` (all 1 when
    there are none). `inference` says how images are seen in evaluation. `mean` and `std` are those of RGB values. What the
    outputs of `networks` are called, for `between`: 0 is the main one, 1 the first auxiliary one. What all families have:
    `FamilyKeys`.
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
    """The Task, made from the keys of a recipe."""

    Keys = SegmentationKeys

    def __init__(self, keys: SegmentationKeys) -> None:
        super().__init__(keys)
        self.terms = build_terms([(part.name, *built) for part, built in zip(keys.loss, self.losses, strict=True)])
        self.inference = keys.inference

    def labels(self, names: Sequence[str] | None = None) -> list[Sequence[str]]:
        return [self.data().class_names if names is None else names]

    def model(self) -> nn.Module:
        """Raises ValueError when the losses are not as many as outputs of a network, or their options not for its classes."""
        num_classes = len(self.data().class_names)
        for term in self.terms:
            term.loss.check(num_classes)
        return self.build_network(num_classes)

    def check_fits(self, network: Any, called: str) -> None:
        if network.num_outputs != len(self.losses):
            raise ValueError(
                f'loss: the {called} has {network.num_outputs} outputs in training, but there are {len(self.losses)} '
                'losses; give one for each output, the main one first'
            )

    def dataset(self, split: Split) -> Samples:
        return Samples(self.source(split), self.transforms[split], split)

    def survey(self, split: Split) -> PixelSurvey:
        """The samples of a split as they lie in their files, for `phalanx data check`."""
        data = self.data()
        return PixelSurvey(data.split(split), data.class_names)

    def collate(self, samples: Sequence[Sample]) -> SegmentationBatch:
        """Raises ValueError when the images differ in size."""
        sizes = {f'{sample.image.shape[2]} x {sample.image.shape[1]}' for sample in samples}
        if len(sizes) > 1:
            raise ValueError(
                f'the images of a batch differ in size ({", ".join(sorted(sizes))}): let '
                'transforms end in one size (random_padding_crop, resize); in evaluation evaluate.batch_size=1 will do, too'
            )
        images = stacked([sample.image for sample in samples])
        pixels = torch.cat([sample.labels.flatten() for sample in samples])
        shapes = tuple((len(sample.labels), sample.labels.shape[1]) for sample in samples)
        ways, indices = zip(*((sample.way, sample.index) for sample in samples), strict=True)
        return SegmentationBatch(images, pixels, shapes, ways, indices)

    def supervised_loss(self, outputs: list[Tensor], batch: SegmentationBatch, whole: WholeStep) -> Loss:
        labels = batch.label_maps()
        return sum_losses(
            ({name: loss(outputs[output], labels, whole)}, coefficient) for name, output, loss, coefficient in self.terms
        )

    def supervised_weights(self, batch: SegmentationBatch) -> dict[str, Tensor] | None:
        labels = batch.label_maps()
        known = [(term.name, term.loss.weights(labels)) for term in self.terms]
        return collect_weights(None if weight is None else {name: weight} for name, weight in known)

    @property
    def sees_whole_step(self) -> bool:
        one_pixel = torch.zeros((1, 1, 1), dtype=torch.int64)
        return any(term.loss.weights(one_pixel) is None for term in self.terms)

    def predict(self, model: nn.Module, batch: SegmentationBatch) -> list[Tensor]:
        """A class map [H, W] uint8 for each image, of the size of its label map: as in the originals, logits are resized."""
        images = self.network_input(batch)
        if self.transforms['eval'] and adds_padding(self.transforms['eval'][-1]):
            grey = torch.from_numpy(grey_after(self.mean, self.std)).to(images.device).view(-1, 1, 1)
            for image, (*_, (H, W)) in zip(images, batch.ways, strict=True):  # exactly: bytes have no 127.5
                image[:, H:], image[:, :, W:] = grey, grey
        logits = self.inference(model, images)  # [B, K, h, w]
        parts = zip(logits, batch.ways, batch.sizes, strict=True)
        return [classify_pixels(own, self.transforms['eval'], way, size) for own, way, size in parts]

    def predictions(self, made: Sequence[LabelMap]) -> list[Tensor]:
        return [torch.from_numpy(class_map) for class_map in made]

    def metric(self) -> Any:
        return self.make_metric(self.data().class_names)

    def request(self, image: Image) -> Sample:
        labels = np.full(image.shape[:2], VOID, np.uint8)  # nothing is known, so nothing counts
        return prepare_sample(image, labels, self.transforms['eval'], np.random.default_rng(0), keep_labels=True)

    def results(self, prediction: list[Tensor], batch: SegmentationBatch) -> list[LabelMap]:
        return [class_map.cpu().numpy() for class_map in prediction]

    def picture(self, sample: Sample, result: LabelMap) -> list[tuple[str, Image]]:
        size = (len(sample.labels), sample.labels.shape[1])
        image = undo_transforms(sample.image.float(), self.transforms['eval'], sample.way, size).round().byte()
        return drawing.draw_comparison(image.permute(1, 2, 0).numpy(), sample.labels.numpy(), result)

    @property
    def writers(self) -> Writers:
        return drawing.build_writers(self.labels()[0])

    def export(self, model: nn.Module, *, post_processing: bool = False) -> Export:
        """The main output, or its classes, for one view of an image; windows, scales and flips are the caller's."""
        preparation = {'transforms': [describe_transform(transform) for transform in self.transforms['eval']], **self.pixels}
        if post_processing and (self.transforms['eval'] or self.inference != Inference()):
            raise ValueError(
                '--with_post_processing: eval_transforms, windows, scales or flips stand between the logits and the class map; '
                'phalanx.runtime does them, a graph for one size of image cannot'
            )
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
