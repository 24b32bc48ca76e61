"""Detection: boxes and classes of the objects in an image. Task, batches and recipe keys of the family."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.data.bands import to_rgb
from phalanx.data.batch import ImageBatch, channels_first, split_evenly, stack_images
from phalanx.data.samples import Dataset, Draw, Image, Split
from phalanx.families.base import Colours, Family, FamilyKeys, check_part
from phalanx.families.detection import draw as drawing
from phalanx.families.detection.data import DATA, Data, Objects
from phalanx.families.detection.data.annotated import absent_classes
from phalanx.families.detection.data.sampling import SAMPLINGS, Sampling, resample
from phalanx.families.detection.data.write import WRITERS, write
from phalanx.families.detection.distilled import DistilledDetector
from phalanx.families.detection.graph import OUTPUTS, add_suppression
from phalanx.families.detection.inference import Inference
from phalanx.families.detection.loss import ASSIGNERS, LOSSES, TEACHER_LOSSES, Assigner, DetectionLoss, check_outputs
from phalanx.families.detection.loss.assign import Truths, pad_truths
from phalanx.families.detection.loss.terms import choose_assigner
from phalanx.families.detection.metric import METRICS, CocoAp
from phalanx.families.detection.models import MODELS
from phalanx.families.detection.nms import NO_SUPPRESSION, Nms, begin_nms
from phalanx.families.detection.survey import BoxSurvey
from phalanx.families.detection.transforms import TRANSFORMS, ImageWithObjects, Transform, TransformContext, augment
from phalanx.families.distillation import DistillationModel
from phalanx.families.export import Export, GraphPart, NetworkWithDecoding, describe_transform
from phalanx.families.losses import collect_weights, sum_losses
from phalanx.families.sizing import sizing_of
from phalanx.families.task import Loss
from phalanx.families.writing import Writers
from phalanx.parallel.step import WholeStep
from phalanx.runtime.detection import Detections
from phalanx.runtime.prepare import check_batch
from phalanx.runtime.results import Found
from phalanx.system.memory import to_device

READ_OUT = (
    'of each class the pre_top_k highest scores above score_threshold; suppression; of all classes the keep_top_k highest; '
    'then boxes are scaled to the image, and clipped to it last'
)
TEACHER = 'teacher'  # name of the larger network of a distillation
STRIDE = 32  # sides of network inputs are multiples of it
SHOWN = 10  # classes in a message


@dataclass(frozen=True)
class Sample:
    image: Tensor  # uint8 [3, h, w] (with `data.bands` [C, h, w], uint8 or uint16), input of the network before normalisation
    objects: Objects  # in training in pixels of `image`, in evaluation of the image as it was read
    index: int  # number of the sample in its data set
    size: tuple[int, int]  # (height, width) of the image as it was read
    frame: Tensor  # [4] in evaluation, the box (xyxy) of the whole image within `image`


@dataclass(frozen=True)
class DetectionBatch(ImageBatch):
    """Samples padded to one size; objects of all images in one tensor. Shapes: B images, N objects."""

    boxes: Tensor  # [N, 4]
    classes: Tensor  # [N]
    frames: Tensor  # [B, 4]
    truths: tuple[Objects, ...]  # annotations for the metric, on the host
    sizes: tuple[tuple[int, int], ...]
    indices: tuple[int, ...]
    most: int = 1  # for denoising: the largest number of objects per image in the whole step

    def split(self, parts: int) -> list[Self]:
        # Objects of all images are in one tensor: split them by image, then join those of each part.
        objects = ([torch.cat(part) for part in split_evenly(each, parts)] for each in self.per_image())
        rest = (split_evenly(field, parts) for field in (self.frames, self.truths, self.sizes, self.indices))
        fields = zip(split_evenly(self.images, parts), *objects, *rest, strict=True)
        return [replace(type(self)(*part), most=self.most) for part in fields]

    def per_image(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Boxes [n, 4] and classes [n] of each image."""
        counts = [len(truth) for truth in self.truths]
        return torch.split(self.boxes, counts), torch.split(self.classes, counts)

    def padded(self, least: int = 0) -> Truths:
        """Objects of all images, padded to `most`, and to at least `least`."""
        return pad_truths(*self.per_image(), self.boxes.dtype, max(self.most, least))


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    absent: tuple[str, ...] = ()  # classes without objects

    @property
    def notes(self) -> list[str]:
        notes = [f'{self.split} data: {count} {what}' for what, count in self.source.notes.items()]
        names = ', '.join(self.absent[:SHOWN]) + (f' and {len(self.absent) - SHOWN} more' if len(self.absent) > SHOWN else '')
        return [*notes, *([f'{self.split} data: no object of {names}, {self.effect}'] if names else [])]

    @property
    def effect(self) -> str:
        """Consequence of classes without objects, and the fix."""
        if self.split == 'eval':
            return 'so the metric does not measure it'
        return 'so it is not learned; is its name spelled as in the annotations? Else remove it from data.classes'

    def __getitem__(self, draw: Draw) -> Sample:
        if self.split == 'eval':
            image, objects = self.source.read(draw)
            return prepare_eval_sample(image, objects, self.transforms, draw)
        rng = draw.rng()
        context = TransformContext(rng, draw.step_rng, lambda: self.training_sample(draw.of(int(rng.integers(len(self))))))
        image, objects = self.training_sample(draw)
        size = image.shape[:2]
        image, objects = augment(image, objects, self.transforms, context, draw.epoch)
        return Sample(channels_first(image), objects, draw.index, size, torch.zeros(4))

    def training_sample(self, draw: Draw) -> ImageWithObjects:
        """Image with its objects for training: without crowds, clipped to the image. Raises SampleError."""
        image, objects = self.source.read(draw)
        return image, objects.at(~objects.ignored).clipped(image.shape[1], image.shape[0])


def prepare_eval_sample(image: Image, objects: Objects, transforms: Sequence[Transform], draw: Draw) -> Sample:
    """Prepare an evaluation sample: track the image frame through `transforms`; boxes stay in original pixels."""
    H, W = image.shape[:2]
    frame = Objects.plain(np.array([[0, 0, W, H]], np.float32), np.zeros(1, np.int64))
    # The frame goes through as if it were an object, so that any transform that moves boxes can be undone.
    context = TransformContext(draw.rng(), draw.step_rng, lambda: (image, Objects.none()))
    prepared = image
    for transform in transforms:
        prepared, frame = transform(prepared, frame, context)
    return Sample(channels_first(prepared), objects, draw.index, (H, W), torch.from_numpy(frame.boxes[0]))


def transform_scale(transforms: Sequence[Transform], image: Image) -> tuple[float, float]:
    """Scale factors in x and y that `transforms` apply to `image`."""
    H, W = image.shape[:2]
    x0, y0, x1, y1 = prepare_eval_sample(image, Objects.none(), transforms, Draw(0, 0, 0, 0)).frame.tolist()
    return (x1 - x0) / W, (y1 - y0) / H


@dataclass(frozen=True, kw_only=True)
class DetectionKeys(FamilyKeys):
    """Keys of a detection recipe, besides those of all families (`FamilyKeys`).

    `assigner` assigns anchors to true boxes (default: the assigner of the loss, or `atss_then_task_aligned`). `nms` filters
    boxes (default: not for detectors with queries, of which the 300 highest scores stay); pictures show those with a score of
    at least `shown_from`. `inference` sets windows, scales and flips of evaluation and prediction. `sampling` repeats images
    of rare classes. `mean` and `std` are in RGB order. `from_teacher` lists further losses between the student and a frozen
    teacher, as in PaddleDetection: `networks` then holds only `teacher`, whose boxes guide the task-aligned assignment. Their
    coefficients follow those of `loss`; a single coefficient applies to all. `fixed_objects`: a network with queries meets this
    number of true boxes per image and one number of denoising queries in each step, so that `train.compile` and
    `train.cuda_graph` meet one shape; losses stay the same. An image with more objects makes that step's shape larger; 0: as
    many as the fullest image of the step has.
    """

    model: Annotated[partial[nn.Module], MODELS]
    data: Annotated[partial[Data], DATA]
    loss: tuple[Annotated[partial[DetectionLoss], LOSSES, check_part], ...]
    assigner: Annotated[partial[Assigner] | None, ASSIGNERS, check_part] = None
    metric: Annotated[partial[Any], METRICS] = partial(CocoAp)
    transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    eval_transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    mean: Colours = (0.0, 0.0, 0.0)
    std: Colours = (1.0, 1.0, 1.0)
    networks: dict[str, Annotated[partial[nn.Module], MODELS]] | None = None
    from_teacher: tuple[Annotated[partial[DetectionLoss], TEACHER_LOSSES, check_part], ...] = ()
    nms: Nms | None = None
    inference: Inference = field(default_factory=Inference)
    shown_from: float = 0.3
    sampling: Annotated[partial[Sampling] | None, SAMPLINGS, check_part] = None
    fixed_objects: int = 0


class Detection(Family):
    """Task of detection, built from the keys of a recipe."""

    Keys = DetectionKeys
    data_needs = ('split', 'class_names')
    network_needs = ('decode',)

    def __init__(self, keys: DetectionKeys) -> None:
        if keys.from_teacher:
            if {*(keys.networks or {}), *keys.frozen} != {TEACHER}:
                # The teacher's losses are ordinary losses after those of `loss`; one coefficient stands for all.
                raise ValueError(f'from_teacher: `networks` must hold one network, named {TEACHER!r}; it is always frozen')
            losses, factors = (*keys.loss, *keys.from_teacher), keys.loss_coefficients
            coefficients = factors * len(losses) if len(factors) == len(keys.loss) == 1 else factors
            keys = replace(keys, loss=losses, loss_coefficients=coefficients, frozen=(TEACHER,))
        super().__init__(keys)
        self.learns_from_teacher = bool(keys.from_teacher)
        self.assigner = choose_assigner([loss for loss, _ in self.losses], keys.assigner)
        keys.metric(())  # reports errors in its options now
        self.nms, self.shown_from = keys.nms, keys.shown_from
        self.sampling: Sampling | None = keys.sampling and keys.sampling()  # type: ignore[assignment]  # built from its options
        self.inference, self.fixed_objects = keys.inference, keys.fixed_objects
        if self.fixed_objects < 0 or (self.fixed_objects and not any(loss.pads_truths for loss, _ in self.losses)):
            raise ValueError(
                f'fixed_objects: must be at least 0, and 0 for detectors without queries; got {self.fixed_objects}'
            )
        if any(getattr(each, 'start_epoch', 0) or getattr(each, 'stop_epoch', None) for each in self.transforms['eval']):
            raise ValueError('eval_transforms: start_epoch and stop_epoch are for training; an evaluation runs all of them')

    @staticmethod
    def distils(keys: DetectionKeys) -> bool:
        return bool(keys.between or keys.from_teacher)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        names: tuple[str, ...] = self.data().class_names
        return names

    def labels(self, names: Sequence[str] | None = None) -> list[Sequence[str]]:
        return [self.class_names if names is None else names]

    def model(self) -> nn.Module:
        return self.build_network(len(self.class_names))

    def build_distillation(self, networks: Mapping[str, Any]) -> DistillationModel:
        return DistilledDetector(**networks) if self.learns_from_teacher else super().build_distillation(networks)

    def check_fits(self, network: Any, role: str) -> None:
        """Raise ValueError if a network predicts by queries and a loss is for anchors, or the other way round."""
        has_queries = getattr(network, 'takes_truths', False)
        if any(loss.pads_truths != has_queries for loss, _ in self.losses):
            fitting = [name for name, loss in LOSSES.items() if getattr(loss, 'pads_truths', False) == has_queries]
            ways = ('anchors', 'queries') if has_queries else ('queries', 'anchors')
            raise ValueError(f'loss: is for {ways[0]}, and the {role} has {ways[1]}; use {" or ".join(fitting)}')

    def dataset(self, split: Split) -> Samples:
        source = self.source(split)
        absent = absent_classes(source, self.class_names)
        if self.sampling and split == 'train' and self.training_source is None:  # not for the loss of the evaluation samples
            source = resample(source, self.sampling, self.class_names)
        return Samples(source, self.transforms[split], split, absent)

    def notes(self, epochs: float) -> list[str]:
        """Warnings on transforms and assigners that change after the end of a training of `epochs`; trial runs get none."""
        if epochs < 1:
            return []
        late = [
            f'transforms.{place}.{key}={getattr(transform, key)}'
            for place, transform in enumerate(self.transforms['train'])
            for key in ('start_epoch', 'stop_epoch')
            if (getattr(transform, key, None) or 0) > epochs
        ]
        if (static := getattr(self.assigner, 'static_epochs', None) or 0) > epochs:
            late.append(f'static_assigner_epochs={static} (of the loss, or assigner.static_epochs)')
        if not late:
            return []
        return [f'the training ends after {epochs:.4g} epochs, before {", ".join(late)}; lower these with train.epochs']

    def survey(self, split: Split) -> BoxSurvey:
        """Samples of a split before transforms, for `phalanx data check`."""
        scale = partial(transform_scale, self.transforms['eval'])
        return BoxSurvey(self.data().split(split), self.class_names, scale, self.bands)

    rewritten_as = tuple(WRITERS)

    def rewrite(self, split: Split, out: Path, *, form: str) -> dict[str, str]:
        """Rewrite the samples of a split in another format, for `phalanx data rewrite`; see `data.write`."""
        return write(self.source(split), self.class_names, out, split, form=form)

    def collate(self, samples: Sequence[Sample]) -> DetectionBatch:
        """Batch samples; smaller images are padded on the right and at the bottom with the mean colour."""
        objects = Objects.all_of([sample.objects for sample in samples])
        return DetectionBatch(
            images=pad_to_common_size([sample.image for sample in samples], self.mean_colour),
            boxes=torch.from_numpy(objects.boxes),
            classes=torch.from_numpy(objects.classes),
            frames=torch.stack([sample.frame for sample in samples]),
            truths=tuple(sample.objects for sample in samples),
            sizes=tuple(sample.size for sample in samples),
            indices=tuple(sample.index for sample in samples),
            most=max(1, *(len(sample.objects) for sample in samples)),
        )

    @property
    def mean_colour(self) -> list[int]:
        """Stored values that normalise to about 0, one per band."""
        largest = self.bands.largest if self.bands else 255
        return [round(largest * value) for value in self.mean]

    def align(self, batch: DetectionBatch, whole: WholeStep) -> DetectionBatch:
        """Pad images to the largest size on any rank, and count the objects of the fullest image on any rank.

        Otherwise batch-norm statistics and the groups of denoising queries would depend on the sharding.
        """
        has_one_size = sizing_of(self.transforms['train']) in ('one', 'one a step')
        if has_one_size and not any(loss.pads_truths for loss, _ in self.losses):
            return batch
        *sides, most = whole.largest((*batch.images.shape[2:], batch.most))
        images = batch.images if has_one_size else pad_to_common_size(list(batch.images), self.mean_colour, least=sides)
        return replace(batch, images=images, most=most)

    def outputs(self, model: Any, batch: DetectionBatch) -> Any:
        images = self.network_input(batch)
        if not getattr(model, 'takes_truths', False):
            return model(images)
        # Detectors with queries learn from noisy true boxes, too.
        if not self.fixed_objects:
            return model(images, batch.padded())
        most = torch.full((), batch.most, device=images.device)
        return model.without_padding(model(images, batch.padded(self.fixed_objects)._replace(most=most)), batch.most)

    @property
    def sees_whole_step(self) -> bool:
        return any(loss.sees_whole_step for loss, _ in self.losses) or super().sees_whole_step

    def supervised_loss(self, outputs: Any, batch: DetectionBatch, whole: WholeStep) -> Loss:
        truths = batch.padded()
        check_outputs(outputs, [loss for loss, _ in self.losses], self.assigner, len(batch), len(self.class_names))
        # One assignment for all losses of the batch.
        with torch.no_grad():
            assigned = self.assigner(outputs, truths, whole)
        return sum_losses((loss(outputs, truths, assigned), coefficient) for loss, coefficient in self.losses)

    def supervised_weights(self, batch: DetectionBatch) -> Mapping[str, Tensor] | None:
        return collect_weights(loss.weights(*batch.per_image()) for loss, _ in self.losses)

    def begin_prediction(self, model: Any, batch: DetectionBatch) -> Callable[[], list[Detections]]:
        """Begin to detect the objects of each image, in pixels of the original image."""
        boxes, scores = self.inference(model, self.network_input(batch))  # [B, A, 4], [B, A, K]
        sizes = to_device(torch.tensor(batch.sizes), boxes.device).flip(1)  # [B, 2] width, height
        corners, sides = batch.frames[:, :2], batch.frames[:, 2:] - batch.frames[:, :2]
        # From pixels of the input to pixels of the image: shift by the corner of the frame, scale by the ratio of the sides.
        boxes = (boxes - corners.repeat(1, 2)[:, None]) * (sizes / sides).repeat(1, 2)[:, None]
        select = begin_nms(boxes.float(), scores.float(), self.suppression(model))
        return lambda: [Detections(*(part.numpy() for part in image)) for image in select()]

    def suppression(self, model: Any) -> Nms:
        """Settings of the recipe; by default NMS, for detectors with queries only of the boxes of several views."""
        if self.nms or not getattr(model, 'takes_truths', False):
            return self.nms or Nms()
        return (
            replace(NO_SUPPRESSION, nms_threshold=Nms().nms_threshold) if self.inference.has_several_views else NO_SUPPRESSION
        )

    def metric(self) -> Any:
        return self.make_metric(self.class_names)

    def request(self, image: Image) -> Sample:
        return prepare_eval_sample(image, Objects.none(), self.transforms['eval'], Draw(0, 0, 0, 0))

    def results(self, prediction: list[Detections], batch: DetectionBatch) -> list[list[Found]]:
        return [detections.named(self.class_names, size) for detections, size in zip(prediction, batch.sizes, strict=True)]

    def picture(self, sample: Sample, result: list[Found]) -> list[tuple[str, Image]]:
        image, detections = (
            to_rgb(sample.image.permute(1, 2, 0).numpy(), self.bands),
            drawing.filter_by_score(result, self.shown_from),
        )
        return drawing.draw_comparison(image, sample.size, sample.objects, self.class_names, detections)

    @property
    def writers(self) -> Writers:
        return drawing.build_writers(self.shown_from, self.bands)

    def export(self, model: Any, *, post_processing: bool = False) -> Export:
        """Export boxes and scores of all anchors, or of the results of NMS; the caller scales them to the image.

        Windows, scales and flips are left to the caller. Raises ValueError for `post_processing` if the recipe has any.
        """
        if post_processing and self.inference.has_several_views:
            raise ValueError(
                '--with_post_processing: one suppression follows all windows, scales and flips of an image, which a graph for '
                'one of them cannot do; phalanx.runtime does'
            )
        nms = asdict(self.suppression(model))
        has_one_size = sizing_of(self.transforms['eval']) == 'one' and not self.inference.has_several_views
        preparation = {
            'transforms': [describe_transform(transform) for transform in self.transforms['eval']],
            'filled_up': f'on the right and at the bottom with the colour `fill`, to multiples of {STRIDE} pixels',
            'multiple_of': STRIDE,
            'fill': self.mean_colour,
            **self.pixels,
        }
        return Export(
            NetworkWithDecoding(model, model.decode),
            {
                'boxes': '[batch, anchors, 4]: x0, y0, x1, y1 in pixels of the input',
                'scores': '[batch, anchors, classes]: probabilities, each class for itself',
            },
            preparation,
            {
                'classes': self.class_names,
                'inference': asdict(self.inference),
                'nms': nms,
                'shown_from': self.shown_from,
                'order': READ_OUT,
            },
            in_graph=GraphPart(partial(add_suppression, nms=nms), OUTPUTS) if post_processing else None,
            is_set=getattr(model, 'takes_truths', False),
            is_rounded=getattr(model, 'rounds_places', False),
            dynamic={} if has_one_size else {2: STRIDE, 3: STRIDE},
        )


def pad_to_common_size(images: Sequence[Tensor], colour: Sequence[int], *, least: Sequence[int] = (STRIDE, STRIDE)) -> Tensor:
    """Pad images [C, h, w] on the right and at the bottom with `colour` to the smallest common size, [B, C, H, W].

    H and W are multiples of STRIDE and at least `least`. Raises TooLargeError.
    """
    largest = [-(-max(image.shape[axis] for image in images) // STRIDE) * STRIDE for axis in (1, 2)]
    sides = [max(pair) for pair in zip(largest, least, strict=True)]
    check_batch(len(images), *sides)
    if all(list(image.shape[1:]) == sides for image in images):
        return stack_images(images)
    canvas = images[0].new_tensor(colour).view(1, -1, 1, 1).repeat(len(images), 1, *sides)
    for place, image in zip(canvas, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return canvas
