"""A plugin with one part of every family and kind, as docs/extending.md describes them. `CALLS` counts their use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.data.samples import Draw, Image, Split
from phalanx.engine.optim.schedule import Schedule
from phalanx.families.detection.data import Objects
from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss import Assigned, DetectionLoss, Truths
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.texts import Texts as EncodedTexts
from phalanx.families.segmentation.loss import PixelLoss
from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.output import TableOutput
from phalanx.families.task import Term
from phalanx.families.text_detection.data import Texts
from phalanx.families.text_detection.models.maps import Maps
from phalanx.parallel import dist

CALLS: Counter[str] = Counter()  # of each part, by `family.kind`


class Segmenter(nn.Module):
    num_outputs = 1

    def __init__(self, num_classes: int, *, width: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, width, 1), nn.Conv2d(width, num_classes, 1))

    def forward(self, images: Tensor) -> list[Tensor]:
        CALLS['segmentation.models'] += 1
        return [self.layers(images)]


class Detector(nn.Module):
    """One anchor per 32 x 32 pixels, distances of 0 to 16 strides."""

    def __init__(self, num_classes: int, *, width: int = 2) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.layers = nn.Sequential(nn.Conv2d(3, width, 32, 32), nn.Conv2d(width, num_classes + 4 * 17, 1))

    def forward(self, images: Tensor) -> Raw:
        CALLS['detection.models'] += 1
        maps = self.layers(images)
        y, x = (32 * (torch.arange(side, device=images.device) + 0.5) for side in maps.shape[2:])
        points = torch.cartesian_prod(y, x).flip(1)
        output = maps.flatten(2).transpose(1, 2)
        logits, distances = output.split([self.num_classes, 4 * 17], dim=2)
        return Raw(logits, distances, points, points.new_full((len(points),), 32.0), (len(points),))

    def decode(self, raw: Raw) -> tuple[Tensor, Tensor]:
        return raw.boxes, raw.logits.sigmoid()


class Recogniser(TextNetwork):
    def __init__(self, num_classes: int, *, width: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, width, (32, 4), (32, 4)), nn.Conv2d(width, num_classes + 1, 1))

    def forward(self, images: Tensor, texts: EncodedTexts | None = None) -> Outputs:
        CALLS['recognition.models'] += 1
        return Outputs(self.layers(images).squeeze(2).transpose(1, 2))


class Tabulator(nn.Module):
    def __init__(self, num_tokens: int, *, width: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.Linear(width, num_tokens + 4))

    def forward(self, images: Tensor, tokens: Tensor | None = None, max_steps: int = 501) -> TableOutput:
        CALLS['table.models'] += 1
        steps = max_steps if tokens is None else tokens.shape[1]
        output = self.layers(images.mean((2, 3)))[:, None].expand(-1, steps, -1)
        return TableOutput(output[..., :-4], output[..., -4:].sigmoid())

    def exported(self, max_steps: int, *, post_processing: bool) -> tuple[nn.Module, dict[str, str]]:
        return self, {'probabilities': '[batch, steps, tokens]', 'boxes': '[batch, steps, 4]'}


class PageReader(nn.Module):
    def __init__(self, num_classes: int = 1, *, width: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, width, 1), nn.Conv2d(width, 2, 1))

    def forward(self, images: Tensor) -> Maps:
        CALLS['text_detection.models'] += 1
        shrink, threshold = self.layers(images).float().sigmoid().split(1, dim=1)
        return Maps(shrink, threshold, torch.sigmoid(50 * (shrink - threshold))) if self.training else Maps(shrink)


class Source:
    """Equal samples, a grey image of 64 x 64 pixels and its annotation."""

    def __init__(self, family: str, truth: Any, count: int) -> None:
        self.family, self.truth, self.count = family, truth, count

    def __len__(self) -> int:
        return self.count

    def check_files(self) -> None:
        pass

    def name(self, index: int) -> str:
        return f'grey {index}'

    def read(self, draw: Draw) -> tuple[Image, Any]:
        CALLS[f'{self.family}.data'] += 1
        return np.full((64, 64, 3), 100, np.uint8), self.truth


class PixelData:
    class_names = ('left', 'right')

    def __init__(self, *, count: int = 4) -> None:
        self.count = count

    def split(self, split: Split) -> Source:
        labels = np.zeros((64, 64), np.uint8)
        labels[:, 32:] = 1
        return Source('segmentation', labels, self.count)


class ObjectSource(Source):
    notes: ClassVar[dict[str, int]] = {}


class ObjectData(PixelData):
    def split(self, split: Split) -> ObjectSource:
        objects = Objects.plain(np.array([[8, 8, 40, 40]], np.float32), np.array([1]))
        return ObjectSource('detection', objects, self.count)


class LineData(PixelData):
    def split(self, split: Split) -> Source:
        return Source('recognition', '12', self.count)


class TableSource(Source):
    def lengths(self, vocabulary: Any) -> np.ndarray[Any, Any]:
        return np.full(self.count, vocabulary.length(self.truth.structure))


class TableData(PixelData):
    def split(self, split: Split) -> TableSource:
        structure = ('<tbody>', '<tr>', '<td>', '</td>', '</tr>', '</tbody>')
        return TableSource('table', Table(structure, (Cell(('a',), (4, 4, 20, 12)),)), self.count)


class PageData(PixelData):
    def split(self, split: Split) -> Source:
        outline = np.array([[8, 8], [56, 8], [56, 40], [8, 40]], np.float32)
        return Source('text_detection', Texts((outline,), ('ab',), (False,)), self.count)


class PixelError(PixelLoss):
    def __call__(self, logits: Tensor, labels: Tensor, whole: Any) -> Term:
        CALLS['segmentation.losses'] += 1
        return Term(F.cross_entropy(logits, labels, ignore_index=255, reduction='sum'), self.weights(labels))

    def weights(self, labels: Tensor) -> Tensor:
        return (labels != 255).sum()


class BoxError(DetectionLoss):
    def __call__(self, raw: Any, truths: Any, assigned: Any) -> dict[str, Term]:
        CALLS['detection.losses'] += 1
        logits, distances = raw.logits.float(), raw.distances.float()
        return {'mine': Term(logits.square().sum() + distances.square().sum(), truths.exist.sum(), least=1)}

    def weights(self, boxes: Any, classes: Any) -> dict[str, Tensor]:
        return {'mine': torch.tensor(sum(map(len, boxes)))}


class TextError:
    heads = frozenset({'ctc'})

    def __call__(self, outputs: Any, texts: Any) -> dict[str, Term]:
        CALLS['recognition.losses'] += 1
        return {'mine': Term(outputs.ctc.square().sum(), self.weights(texts, 10)['mine'])}

    def weights(self, texts: Any, num_characters: int) -> dict[str, Tensor]:
        return {'mine': texts.lengths.sum()}


class TableError:
    def __call__(self, outputs: Any, targets: Any) -> dict[str, Term]:
        CALLS['table.losses'] += 1
        return {'mine': Term(outputs.logits.square().sum() + outputs.boxes.sum(), self.weights(targets)['mine'])}

    def weights(self, targets: Any) -> dict[str, Tensor]:
        return {'mine': torch.tensor(len(targets.ids))}


class MapError:
    def __call__(self, maps: Any, targets: Any, whole: Any) -> dict[str, Term]:
        CALLS['text_detection.losses'] += 1
        errors = (maps.binary.squeeze(1) - targets.shrink_map).square()
        return {'mine': Term((errors * targets.shrink_mask).sum(), self.weights(targets)['mine'])}

    def weights(self, targets: Any) -> dict[str, Tensor]:
        return {'mine': targets.shrink_mask.sum()}


@dataclass(frozen=True, kw_only=True)
class FirstAnchor:
    """Assigns the first anchor of each image to its first true box."""

    score: float = 0.5

    def __call__(self, raw: Any, truths: Truths, whole: Any) -> Assigned:
        CALLS['detection.assigners'] += 1
        is_first = torch.zeros(raw.logits.shape[:2], dtype=torch.bool)
        is_first[:, 0] = truths.exist[:, 0]
        return Assigned(is_first, torch.zeros_like(is_first, dtype=torch.int64), self.score * is_first, 1)


class AsTeacher(DetectionLoss):
    def __call__(self, raw: Any, truths: Truths, assigned: Assigned) -> dict[str, Term]:
        CALLS['detection.teacher_losses'] += 1
        total = (raw.logits - raw.teacher.logits).square().sum() + (raw.distances - raw.teacher.distances).square().sum()
        return {'as_teacher': Term(total, torch.tensor(float(len(raw.logits))))}


@dataclass(frozen=True, kw_only=True)
class Brighten:
    family: ClassVar[str]
    amount: int = 50

    def __call__(self, image: Image, truth: Any, rng: np.random.Generator) -> tuple[Image, Any]:
        CALLS[f'{self.family}.transforms'] += 1
        return image + np.uint8(rng.integers(self.amount, endpoint=True)), truth


class BrightenWithContext(Brighten):
    """For families whose transforms may draw a second sample."""

    def __call__(self, image: Image, truth: Any, context: Any) -> tuple[Image, Any]:
        other, _ = context.another()
        assert other.shape == image.shape
        return super().__call__(image, truth, context.rng)


class CountSamples:
    """A metric whose one number is that of the samples."""

    family: ClassVar[str]
    names = ('samples',)
    tie_breakers = ()
    worst = 'Bad samples'

    def __init__(self, *known: Any, offset: int = 0) -> None:
        self.offset, self.samples = offset, 0

    def update(self, prediction: Sequence[Any], batch: Any) -> list[None]:
        CALLS[f'{self.family}.metrics'] += 1
        assert len(prediction) == len(batch.truths) == len(batch.indices)
        self.samples += len(prediction)
        return [None] * len(prediction)

    def gather(self) -> None:
        self.samples = int(dist.sum_over_ranks(torch.tensor(self.samples)))

    def compute(self) -> dict[str, float]:
        return {'samples': self.samples + self.offset}

    def table(self) -> list[dict[str, str | float]]:
        return []

    def figures(self) -> list[Any]:
        return []


class Tiny(nn.Module):
    """A backbone with one convolution per map."""

    def __init__(self, strides: Sequence[int], depth: int) -> None:
        super().__init__()
        self.strides, self.channels = tuple(strides), (depth,) * len(strides)
        self.convs = nn.ModuleList(nn.Conv2d(3, depth, stride, stride) for stride in strides)

    def forward(self, images: Tensor) -> list[Tensor]:
        CALLS['backbones'] += 1
        return [conv(images) for conv in self.convs]


def tiny(strides: Sequence[int], *, depth: int = 8) -> Tiny:
    return Tiny(strides, depth)


class Signs(torch.optim.Optimizer):
    """Steps of the sign of the gradient. With `counts`, each is shorter than the last, by a count in the parameter groups."""

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, counts: bool = False) -> None:
        super().__init__(groups, {'lr': lr, 'count': 0})
        self.counts = counts

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # takes no closure
        CALLS['optimizers'] += 1
        for group in self.param_groups:
            group['count'] += self.counts
            for parameter in group['params']:
                parameter -= group['lr'] / (1 + group['count']) * parameter.grad.sign()


def halving(lr: float, length: int, steps_per_epoch: float, timeline: Any = None, *, every: int = 100) -> Schedule:
    CALLS['schedules'] += 1
    return lambda step: lr * 0.5 ** (step // every)


class Recorder:
    """A tracker."""

    def __init__(self, *, prefix: str = '') -> None:
        self.prefix = prefix

    def start(self, run: Any) -> None:
        CALLS['trackers'] += 1

    def log(self, step: int, values: Any) -> None:
        CALLS['trackers'] += 1

    def finish(self, summary: Any) -> None:
        CALLS['trackers'] += 1


def of_family(base: type, family: str) -> type:
    """A subclass of `base` that counts its calls for `family`."""
    return type(f'{base.__name__}_{family}', (base,), {'family': family})


PARTS = {
    'segmentation': (Segmenter, PixelData, PixelError, Brighten),
    'detection': (Detector, ObjectData, BoxError, BrightenWithContext),
    'recognition': (Recogniser, LineData, TextError, Brighten),
    'table': (Tabulator, TableData, TableError, Brighten),
    'text_detection': (PageReader, PageData, MapError, BrightenWithContext),
}
PLUGIN: dict[str, Any] = {
    family: {
        'models': {'mine': model},
        'data': {'mine': data},
        'losses': {'mine': loss},
        'transforms': {'mine': of_family(transform, family)},
        'metrics': {'mine': of_family(CountSamples, family)},
    }
    for family, (model, data, loss, transform) in PARTS.items()
}
PLUGIN['detection'] |= {'assigners': {'mine': FirstAnchor}, 'teacher_losses': {'mine': AsTeacher}}
PLUGIN |= {
    'backbones': {'mine': tiny},
    'optimizers': {'mine': Signs},
    'schedules': {'mine': halving},
    'trackers': {'mine': Recorder},
}
