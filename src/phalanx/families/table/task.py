"""Table structure recognition: Task, samples, batches and recipe keys."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from phalanx.data.batch import ImageBatch, channels_first, stack_images
from phalanx.data.mixing import map_sources
from phalanx.data.samples import Dataset, Draw, Image, Split, SubsetSource
from phalanx.families.base import Colours, Family, FamilyKeys, check_part
from phalanx.families.export import Export
from phalanx.families.losses import collect_weights, sum_losses
from phalanx.families.outputs import check_fields
from phalanx.families.table import draw as drawing
from phalanx.families.table.annotation import Table
from phalanx.families.table.data import DATA, Data, Source
from phalanx.families.table.loss import LOSSES, TableLoss, Targets, check_outputs, locates_cells
from phalanx.families.table.metric import METRICS, TableMetric
from phalanx.families.table.models import MODELS
from phalanx.families.table.output import TableOutput
from phalanx.families.table.survey import CellSurvey
from phalanx.families.table.tokens import CELLS, Vocabulary
from phalanx.families.table.transforms import TRANSFORMS, Transform
from phalanx.families.task import FEATURES, Loss
from phalanx.families.writing import Writers
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import fit_square
from phalanx.runtime.results import Prediction
from phalanx.runtime.table import START, decode_structure
from phalanx.system.memory import AsyncCopy

HTML = 'tokens need not be well-formed: `phalanx predict` closes open elements, and ignores unmatched tags'


@dataclass(frozen=True)
class Sample:
    """Image, resized and padded to a square, with its table."""

    image: Tensor  # uint8 [3, side, side], the resized image in its upper left corner
    fitted: tuple[int, int]  # height and width of the resized image
    size: tuple[int, int]  # height and width of the original image
    table: Table  # boxes in pixels of the original image
    index: int = 0  # number of the sample in its data set


@dataclass(frozen=True)
class TableBatch(ImageBatch):
    """Shapes: L tokens of the longest table, start and end tokens included."""

    fitted: Tensor  # int64 [B, 2] height and width of the resized images
    ids: Tensor  # int64 [B, L] token ids, padded with start tokens
    boxes: Tensor  # float32 [B, L, 4] of the cells, relative to width and height, or [B, L, 8] corners
    has_box: Tensor  # bool [B, L]
    sizes: tuple[tuple[int, int], ...]  # (height, width) of the original images
    truths: tuple[Table, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    """Transformed samples of one split."""

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
    """Return a sample for evaluation or prediction: `image` is transformed, `table` stays in pixels of the original."""
    transformed, rng = image, np.random.default_rng(0)
    for transform in transforms:
        transformed, _ = transform(transformed, Table(), rng)
    return replace(prepare_sample(transformed, table, side), size=image.shape[:2])


def prepare_sample(image: Image, table: Table, side: int) -> Sample:
    """Return the sample of an image, resized to fit a square of `side` pixels and padded at the bottom and on the right."""
    picture = fit_square(image, side)
    h, w = picture.shape[:2]
    square = np.pad(picture, ((0, side - h), (0, side - w), (0, 0)))
    return Sample(channels_first(square), (h, w), image.shape[:2], table)


SPAN = re.compile(r'(?:colspan|rowspan)="\d+"')


@dataclass(frozen=True, kw_only=True)
class TableKeys(FamilyKeys):
    """Recipe keys of tables, besides those that all families share (`FamilyKeys`).

    `image_size`: side of the square network input, in pixels. `max_length`: maximum number of tokens of a table; longer ones
    are left out of training, and predictions end there. `fixed_length`: the network computes `max_length` tokens in each step,
    not those of its longest table, so that `train.compile` and `train.cuda_graph` meet one shape; losses stay the same.
    `merge_cells`: a cell without spans is one token. `name_empty_cells`:
    cells without text have tokens of their own. `tokens`: the token dictionary; `more_tokens`: tokens that the data
    have besides, such as `colspan="11"` (`phalanx data check` names them). `mean` and `std` normalise BGR values.
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
    fixed_length: bool = False
    merge_cells: bool = True
    name_empty_cells: bool = False
    tokens: Literal['pubtabnet', 'chinese'] = 'pubtabnet'
    more_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.image_size < 32 or self.max_length < 1:
            values = f'{self.image_size} and {self.max_length}'
            raise ValueError(f'image_size must be at least 32 and max_length at least 1, got {values}')
        known = Vocabulary(self.merge_cells, self.name_empty_cells, chinese=self.tokens == 'chinese')
        if wrong := [token for token in self.more_tokens if not SPAN.fullmatch(token) or f' {token}' in known]:
            raise ValueError(f'more_tokens are spans that `tokens` lacks, such as colspan="11", not {wrong[0]!r}')


class TableStructure(Family):
    """Table Task, built from the keys of a recipe."""

    Keys = TableKeys
    network_needs = ('exported',)
    channels = 'BGR'

    def __init__(self, keys: TableKeys) -> None:
        super().__init__(keys)
        self.image_size, self.max_length, self.has_fixed_length = keys.image_size, keys.max_length, keys.fixed_length
        # Without a loss of their boxes, the network reports places of cells that it never learned.
        self.locates_cells = locates_cells(self.losses)
        chinese, corners = keys.tokens == 'chinese', bool(keys.model.keywords.get('corners', False))
        kinds = keys.merge_cells, keys.name_empty_cells, chinese, corners
        self.vocabulary = Vocabulary(*kinds, more=keys.more_tokens)

    def labels(self, names: Sequence[str] | None = None) -> list[Sequence[str]]:
        # dictionaries may end in a blank, which only recognisers learn
        tokens = self.vocabulary.rows([name for name in names if name.strip()]) if names else self.vocabulary.tokens
        return [tokens, (FEATURES, *tokens)]  # of the structure head, and of the GRU cell

    def model(self) -> nn.Module:
        return self.build_network(len(self.vocabulary))

    def dataset(self, split: Split) -> Samples:
        """Return the samples of a split; training leaves out tables longer than `max_length`, with a note.

        Raises ValueError if all are too long, and FileNotFoundError if files are missing.
        """
        # An evaluation counts every table; training cannot learn tables beyond `max_length`.
        source, transforms = self.source(split), self.transforms[split]
        if split == 'eval':
            return Samples(source, transforms, split, self.image_size)
        short = map_sources(source, self._short)
        if len(short) == 0:
            raise ValueError(f'each of the {len(source)} tables for training has more than max_length={self.max_length} tokens')
        left_out = f'{len(source) - len(short)} of {len(source)} tables for training have more than'
        notes = (f'{left_out} max_length={self.max_length} tokens and are left out',) if len(short) < len(source) else ()
        return Samples(short, transforms, split, self.image_size, notes)

    def _short(self, source: Source) -> SubsetSource:
        """Return the tables of `source` with at most `max_length` tokens."""
        return SubsetSource(source, np.flatnonzero(source.lengths(self.vocabulary) <= self.max_length))

    def survey(self, split: Split) -> CellSurvey:
        """Return the untransformed samples of a split, for `phalanx data check`."""
        return CellSurvey(self.data().split(split), self.vocabulary, self.max_length)

    def collate(self, samples: Sequence[Sample]) -> TableBatch:
        # Boxes become relative to the original image, so that resizing does not matter.
        targets = [self.vocabulary.encode(sample.table, sample.size) for sample in samples]
        ids, boxes, has_box = (
            nn.utils.rnn.pad_sequence([torch.from_numpy(part) for part in parts], batch_first=True)
            for parts in zip(*targets, strict=True)
        )  # padded with 0, which is START
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
        """Return the normalised images; padding is 0 after normalisation, as in the training of the published weights."""
        # Zero outside the resized image: normalisation would turn the black padding into other values.
        inputs = super().network_input(batch)
        places = torch.arange(inputs.shape[-1], device=inputs.device)
        is_row, is_column = (places < size[:, None] for size in batch.fitted.unbind(1))  # [B, side] each
        return inputs * (is_row[:, None, :, None] & is_column[:, None, None, :])

    has_fixed_size = True

    def align(self, batch: TableBatch, whole: WholeStep) -> TableBatch:
        """Pad the tokens to the longest table of the step, over all ranks."""
        # Padding has loss, too (see `Structure`), so it must not depend on the sharding.
        (longest,) = whole.largest([batch.ids.shape[1]])
        missing = longest - batch.ids.shape[1]
        return replace(
            batch,
            ids=F.pad(batch.ids, (0, missing), value=START),
            boxes=F.pad(batch.boxes, (0, 0, 0, missing)),
            has_box=F.pad(batch.has_box, (0, missing)),
        )

    def outputs(self, model: nn.Module, batch: TableBatch) -> TableOutput:
        ids = batch.ids[:, :-1]
        length = ids.shape[1]
        if self.has_fixed_length:
            ids = F.pad(ids, (0, self.max_length + 1 - length), value=START)
        outputs: TableOutput = model(self.network_input(batch), ids)
        # No step depends on later tokens. A distillation has the outputs of several networks.
        return tree_map(lambda values: values[:, :length], outputs) if self.has_fixed_length else outputs

    def supervised_loss(self, outputs: TableOutput, batch: TableBatch, whole: WholeStep) -> Loss:
        targets = shift_targets(batch)
        check_outputs(outputs, [loss for loss, _ in self.losses], targets, len(self.vocabulary))
        return sum_losses((loss(outputs, targets), coefficient) for loss, coefficient in self.losses)

    def supervised_weights(self, batch: TableBatch) -> dict[str, Tensor] | None:
        return collect_weights(loss.weights(shift_targets(batch)) for loss, _ in self.losses)

    def begin_prediction(self, model: nn.Module, batch: TableBatch) -> Callable[[], list[Prediction]]:
        output: TableOutput = model(self.network_input(batch), None, self.max_length + 1)
        check_fields('evaluation', output, {'logits': (len(batch), 'L', len(self.vocabulary))})
        boxes = output.boxes if self.locates_cells else None
        return begin_decoding(output.logits.float().softmax(-1), boxes, batch.sizes, self.vocabulary)

    def metric(self) -> Any:
        return self.make_metric(self.vocabulary, self.max_length)

    def request(self, image: Image) -> Sample:
        return prepare_eval_sample(image, Table(), self.transforms['eval'], self.image_size)

    def picture(self, sample: Sample, result: Prediction) -> list[tuple[str, Image]]:
        # Without the padding.
        h, w = sample.fitted
        return drawing.draw_comparison(sample.image[:, :h, :w].permute(1, 2, 0).numpy(), sample.size, sample.table, result)

    @property
    def writers(self) -> Writers:
        return drawing.WRITERS if self.locates_cells else drawing.WITHOUT_PLACES

    def export(self, model: Any, *, post_processing: bool = False) -> Export:
        """Export the network with greedy decoding; joining tokens to HTML is left to the caller."""
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
            {
                'tokens': self.vocabulary.tokens,
                'end': self.vocabulary.end,
                'cells': sorted(CELLS),
                'locates_cells': self.locates_cells,
                'html': HTML,
            },
        )


def begin_decoding(
    probabilities: Tensor, boxes: Tensor | None, sizes: Sequence[tuple[int, int]], vocabulary: Vocabulary
) -> Callable[[], list[Prediction]]:
    """Begin to decode the most probable tokens up to the end, with cell boxes in pixels of images of `sizes` (height, width).

    `probabilities` [B, L, K] of the K tokens of `vocabulary`; `boxes` [B, L, 4] as in `TableOutput`, or None.
    """
    # Only the best token per step goes to the host, with its box, in one copy.
    chances, numbers = probabilities.max(-1, keepdim=True)
    columns = AsyncCopy(torch.cat([numbers.to(chances.dtype), chances, *([] if boxes is None else [boxes.float()])], -1))

    def finish() -> list[Prediction]:
        tables = (
            (rows[:, 0].astype(np.int64), rows[:, 1], None if boxes is None else rows[:, 2:], size)
            for rows, size in zip(columns.read().numpy(), sizes, strict=True)
        )
        return [decode_structure(*table, vocabulary.tokens, CELLS) for table in tables]

    return finish


def shift_targets(batch: TableBatch) -> Targets:
    """Return the targets shifted by one: the next token after each input token."""
    return Targets(batch.ids[:, 1:], batch.boxes[:, 1:], batch.has_box[:, 1:])
