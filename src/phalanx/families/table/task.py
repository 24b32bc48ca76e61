"""Table structure: the HTML of a table and the boxes of its cells. The family's table of contents, and its part of a recipe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.data.batch import ImageBatch, channels_first, stack_images
from phalanx.data.mixing import map_sources
from phalanx.data.samples import Dataset, Draw, Image, Split, SubsetSource
from phalanx.families.base import Colours, Family, FamilyKeys, check_part
from phalanx.families.export import Export
from phalanx.families.losses import collect_weights, sum_losses
from phalanx.families.table import draw as drawing
from phalanx.families.table.annotation import Table
from phalanx.families.table.data import DATA, Data, Source
from phalanx.families.table.loss import LOSSES, TableLoss, Targets
from phalanx.families.table.metric import METRICS, TableMetric
from phalanx.families.table.models import MODELS
from phalanx.families.table.output import TableOutput
from phalanx.families.table.survey import CellSurvey
from phalanx.families.table.tokens import CELLS, Vocabulary
from phalanx.families.table.transforms import TRANSFORMS, Transform
from phalanx.families.task import Loss
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import fit_square
from phalanx.runtime.results import Prediction
from phalanx.runtime.table import START, decode_structure

HTML = (
    'tokens need not be well-formed: `phalanx predict` closes what is left open, and passes over what closes or opens nothing'
)


@dataclass(frozen=True)
class Sample:
    image: Tensor  # uint8 [3, side, side], in its upper left corner the picture
    fitted: tuple[int, int]  # height and width of the picture there
    size: tuple[int, int]  # its height and width before
    table: Table  # boxes in pixels of the picture as it was before
    index: int = 0  # the number of the sample in its data set


@dataclass(frozen=True)
class TableBatch(ImageBatch):
    """Shapes: L tokens of the longest table, start and end tokens included."""

    fitted: Tensor  # int64 [B, 2] height and width of the picture in each
    ids: Tensor  # int64 [B, L] tokens, filled up with start tokens
    boxes: Tensor  # float32 [B, L, 4] of the cells, in shares of width and height, or [B, L, 8] corners
    has_box: Tensor  # bool [B, L]
    sizes: tuple[tuple[int, int], ...]  # (height, width) of the pictures as they were
    truths: tuple[Table, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    side: int
    notes: tuple[str, ...] = ()

    def __getitem__(self, draw: Draw) -> Sample:
        image, table = self.source.read(draw)
        if self.split == 'eval':
            sample = prepare_eval_sample(image, table, self.transforms, self.side)
            return replace(sample, index=draw.index)
        rng = draw.rng()
        for transform in self.transforms:
            image, table = transform(image, table, rng)
        return replace(prepare_sample(image, table, self.side), index=draw.index)


def prepare_eval_sample(image: Image, table: Table, transforms: Sequence[Transform], side: int) -> Sample:
    """The sample to evaluate or predict: the network sees `image` transformed, `table` keeps its place in `image`."""
    seen, rng = image, np.random.default_rng(0)
    for transform in transforms:
        seen, _ = transform(seen, Table(), rng)
    return replace(prepare_sample(seen, table, side), size=image.shape[:2])


def prepare_sample(image: Image, table: Table, side: int) -> Sample:
    """The sample of an image, fitted into the upper left corner of a square."""
    picture = fit_square(image, side)
    h, w = picture.shape[:2]
    square = np.pad(picture, ((0, side - h), (0, side - w), (0, 0)))
    return Sample(channels_first(square), (h, w), image.shape[:2], table)


@dataclass(frozen=True, kw_only=True)
class TableKeys(FamilyKeys):
    """The keys of a recipe of tables.

    `image_size`: of the square that an image is fitted into, in pixels. `max_length`: the most tokens a table may have; longer
    ones are not trained with, and in evaluation their end is cut off. `merge_cells`: a cell without spans is one token.
    `name_empty_cells`: cells without text have tokens of their own. `tokens`: which there are, in which order. `mean` and `std`
    are those of BGR values. What all families have: `FamilyKeys`.
    """

    model: Annotated[partial[nn.Module], MODELS]
    data: Annotated[partial[Data], DATA]
    loss: tuple[Annotated[partial[TableLoss], LOSSES, check_part], ...]
    metric: Annotated[partial[Any], METRICS] = partial(TableMetric)
    transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    eval_transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    mean: Colours = (0.485, 0.456, 0.406)
    std: Colours = (0.229, 0.224, 0.225)
    networks: dict[str, Annotated[partial[nn.Module], MODELS]] | None = None
    image_size: int = 488
    max_length: int = 500
    merge_cells: bool = True
    name_empty_cells: bool = False
    tokens: Literal['pubtabnet', 'chinese'] = 'pubtabnet'

    def __post_init__(self) -> None:
        if self.image_size < 32 or self.max_length < 1:
            given = f'{self.image_size} and {self.max_length}'
            raise ValueError(f'image_size is at least 32 and max_length at least 1, got {given}')


class TableStructure(Family):
    """The Task, made from the keys of a recipe."""

    Keys = TableKeys
    channels = 'BGR'

    def __init__(self, keys: TableKeys) -> None:
        super().__init__(keys)
        self.image_size, self.max_length = keys.image_size, keys.max_length
        chinese, corners = keys.tokens == 'chinese', bool(keys.model.keywords.get('corners', False))
        self.vocabulary = Vocabulary(keys.merge_cells, keys.name_empty_cells, chinese=chinese, corners=corners)

    def model(self) -> nn.Module:
        return self.build_network(len(self.vocabulary))

    def dataset(self, split: Split) -> Samples:
        """Training leaves out the tables that are too long, and notes it; evaluation takes all, and counts them.

        Raises ValueError when all are too long, and FileNotFoundError when files are missing.
        """
        source, transforms = self.source(split), self.transforms[split]
        if split == 'eval':
            return Samples(source, transforms, split, self.image_size)
        kept = map_sources(source, self._short)
        if len(kept) == 0:
            raise ValueError(f'each of the {len(source)} tables for training has more than max_length={self.max_length} tokens')
        left_out = f'{len(source) - len(kept)} of {len(source)} tables for training have more than'
        notes = (f'{left_out} max_length={self.max_length} tokens and are left out',) if len(kept) < len(source) else ()
        return Samples(kept, transforms, split, self.image_size, notes)

    def _short(self, source: Source) -> SubsetSource:
        """The tables of `source` that are not too long to train with."""
        return SubsetSource(source, np.flatnonzero(source.lengths(self.vocabulary) <= self.max_length))

    def survey(self, split: Split) -> CellSurvey:
        """The samples of a split as they lie in their files, for `phalanx data check`."""
        return CellSurvey(self.data().split(split), self.vocabulary, self.max_length)

    def collate(self, samples: Sequence[Sample]) -> TableBatch:
        targets = [self.vocabulary.encode(sample.table, sample.size) for sample in samples]
        ids, boxes, has_box = (
            nn.utils.rnn.pad_sequence([torch.from_numpy(part) for part in parts], batch_first=True)
            for parts in zip(*targets, strict=True)
        )  # filled up with 0, which is START
        return TableBatch(
            images=stack_images([sample.image for sample in samples]),
            fitted=torch.tensor([sample.fitted for sample in samples]),
            ids=ids,
            boxes=boxes,
            has_box=has_box,
            sizes=tuple(sample.size for sample in samples),
            truths=tuple(sample.table for sample in samples),
            indices=tuple(sample.index for sample in samples),
        )

    def network_input(self, batch: TableBatch) -> Tensor:
        """Padding is 0 after normalisation, as in the training of the published weights."""
        inputs = super().network_input(batch)
        places = torch.arange(inputs.shape[-1], device=inputs.device)
        is_row, is_column = (places < size[:, None] for size in batch.fitted.unbind(1))  # [B, side] each
        return inputs * (is_row[:, None, :, None] & is_column[:, None, None, :])

    has_fixed_size = True

    def align(self, batch: TableBatch, whole: WholeStep) -> TableBatch:
        """As many tokens as the longest table on any rank has."""
        (longest,) = whole.largest([batch.ids.shape[1]])
        missing = longest - batch.ids.shape[1]
        return replace(
            batch,
            ids=F.pad(batch.ids, (0, missing), value=START),
            boxes=F.pad(batch.boxes, (0, 0, 0, missing)),
            has_box=F.pad(batch.has_box, (0, missing)),
        )

    def outputs(self, model: nn.Module, batch: TableBatch) -> TableOutput:
        return model(self.network_input(batch), batch.ids[:, :-1])  # type: ignore[no-any-return]

    def supervised_loss(self, outputs: TableOutput, batch: TableBatch, whole: WholeStep) -> Loss:
        return sum_losses((loss(outputs, shift_targets(batch)), coefficient) for loss, coefficient in self.losses)

    def supervised_weights(self, batch: TableBatch) -> dict[str, Tensor] | None:
        return collect_weights(loss.weights(shift_targets(batch)) for loss, _ in self.losses)

    def predict(self, model: nn.Module, batch: TableBatch) -> list[Prediction]:
        output: TableOutput = model(self.network_input(batch), None, self.max_length + 1)
        return decode_tables(output.logits.float().softmax(-1), output.boxes, batch.sizes, self.vocabulary)

    def metric(self) -> Any:
        return self.make_metric(self.vocabulary, self.max_length)

    def request(self, image: Image) -> Sample:
        return prepare_eval_sample(image, Table(), self.transforms['eval'], self.image_size)

    def picture(self, sample: Sample, result: Prediction) -> list[tuple[str, Image]]:
        h, w = sample.fitted
        return drawing.draw_comparison(sample.image[:, :h, :w].permute(1, 2, 0).numpy(), sample.size, sample.table, result)

    writers = drawing.WRITERS

    def export(self, model: Any, *, post_processing: bool = False) -> Export:
        """The network with its greedy decoding; joining tokens to HTML is the caller's."""
        preparation = {
            'resize': {'longer_side': 'that of the input', 'sides': 'cut off to whole pixels', 'interpolation': 'linear'},
            'filled_up': 'on the right and at the bottom, with zeros after normalisation',
            'side': self.image_size,
            **self.pixels,
        }
        network, outputs = model.exported(self.max_length + 1, post_processing=post_processing)
        return Export(
            network,
            outputs,
            preparation,
            {'tokens': self.vocabulary.tokens, 'end': self.vocabulary.end, 'cells': sorted(CELLS), 'html': HTML},
        )


def decode_tables(
    probabilities: Tensor, boxes: Tensor, sizes: Sequence[tuple[int, int]], vocabulary: Vocabulary
) -> list[Prediction]:
    """The likeliest tokens up to the end token, and the boxes of their cells in pixels of images of `sizes` (height, width).

    `probabilities` [B, L, K] of the K tokens of `vocabulary`; `boxes` [B, L, 4] as a `TableOutput` has them.
    """
    chances, numbers = (part.cpu().numpy() for part in probabilities.max(-1))
    shares = boxes.float().cpu().numpy()
    return [decode_structure(*table, vocabulary.tokens, CELLS) for table in zip(numbers, chances, shares, sizes, strict=True)]


def shift_targets(batch: TableBatch) -> Targets:
    """What follows each token that the network is given."""
    return Targets(batch.ids[:, 1:], batch.boxes[:, 1:], batch.has_box[:, 1:])
