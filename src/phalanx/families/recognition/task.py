"""Recognition: the text of an image of one line. This file is the family's table of contents, and its part of a recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from phalanx.config.options import check_size
from phalanx.data.batch import ImageBatch, channels_first, stacked
from phalanx.data.samples import Dataset, Draw, Image, Rng, SampleError, Split
from phalanx.families.base import Colours, Family, FamilyKeys, check_part
from phalanx.families.export import Export
from phalanx.families.losses import collect_weights, sum_losses
from phalanx.families.recognition import draw as drawing
from phalanx.families.recognition.characters import (
    Characters,
    Dictionary,
    Encoded,
    UnusableTextError,
    padded,
    read_dictionary,
    row_labels,
)
from phalanx.families.recognition.data import DATA, Data
from phalanx.families.recognition.data.lmdb_sets import write_lmdb
from phalanx.families.recognition.data.source import TextImage
from phalanx.families.recognition.loss import LOSSES, TextLoss
from phalanx.families.recognition.metric import METRICS, ReadingAccuracy
from phalanx.families.recognition.models import MODELS
from phalanx.families.recognition.survey import TextSurvey
from phalanx.families.recognition.texts import Texts
from phalanx.families.recognition.transforms import TRANSFORMS, Concatenate, Transform, limit_size
from phalanx.families.task import Loss
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import Size, fitted_line
from phalanx.runtime.recognition import BLANK
from phalanx.runtime.results import Reading

Guide = Literal['sar', 'nrtr']  # heads that learn along with CTC


@dataclass(frozen=True)
class Sample:
    image: Tensor  # uint8 [3, h, w], what the network will see
    width: int  # columns of it, from the left, that the line fills
    label: str  # the text, without characters that the dictionary has not
    unknown: int  # how many those are
    ctc: list[int]
    guide: list[int]


@dataclass(frozen=True)
class RecognitionBatch(ImageBatch):
    """Samples of one image size."""

    widths: Tensor  # int64 [B]
    texts: Texts
    labels: tuple[str, ...]
    unknown: tuple[int, ...]  # how many characters of each text the dictionary has not


@dataclass(frozen=True)
class Encoder:
    """A text -> the numbers that the heads learn."""

    characters: Characters
    guide: Guide | None  # the attention decoder whose target the text is too
    trains: bool = True  # else the text is only compared with what is read, and may be of any length

    def targets(self, text: str) -> tuple[Encoded, list[int]]:
        """Of the CTC head and of the attention decoder. Raises UnusableTextError when one of them cannot learn the text."""
        if not self.trains:
            return self.characters.compared(text), []
        guides = {'sar': self.characters.sar, 'nrtr': self.characters.nrtr}
        return self.characters.encoded(text), guides[self.guide](text) if self.guide else []

    def accepts(self, text: str) -> bool:
        """Whether the text can be a target of every head."""
        try:
            self.targets(text)
        except UnusableTextError:
            return False
        return True


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    """The samples of one split, augmented, fitted and encoded."""

    encoder: Encoder
    keep_ratio: bool
    sizes: tuple[Size, ...]  # a step draws one of them for all its samples
    concatenate: Concatenate | None = None

    def __getitem__(self, draw: Draw) -> Sample:
        image, text = self.source.read(draw)
        image = limit_size(image)
        if self.concatenate is not None or self.transforms:  # to make random numbers takes half as long as to decode a word
            rng = draw.rng()
            if self.concatenate is not None:
                image, text = self.concatenate((image, text), partial(self._another, draw, rng), rng, self.encoder.accepts)
            for transform in self.transforms:
                image, text = transform(image, text, rng)
        size = self.sizes[draw.step_rng().integers(len(self.sizes))] if len(self.sizes) > 1 else self.sizes[0]
        try:
            encoded, guide = self.encoder.targets(text)
        except UnusableTextError as error:
            raise SampleError(f'{self.name(draw.index)}: {error}') from None
        shown, width = fitted_line(image, size, keep_ratio=self.keep_ratio)
        return Sample(channels_first(shown), width, *encoded, guide)

    def _another(self, draw: Draw, rng: Rng) -> TextImage | None:
        try:
            image, text = self.source.read(draw.of(int(rng.integers(len(self)))))
            image = limit_size(image)
        except SampleError:  # it is reported when its own turn comes
            return None
        return image, text


@dataclass(frozen=True, kw_only=True)
class RecognitionKeys(FamilyKeys):
    """The keys of a recipe of recognition.

    `characters`: which there are. `image_size` (height, width) is that of the network's input; of `train_image_sizes`, where
    given, each training step draws one for all its samples. (PaddleOCR's MultiScaleSampler also gives small sizes more samples,
    and can choose the width by the ratio of sides of the lines in the batch; here the global batch stays as the recipe says,
    and which lines are in it does not depend on their size.) A line keeps its ratio of sides, the rest of the width being
    empty, or is stretched with `keep_ratio` false. `concatenate` puts lines behind one another, before the `transforms`.

    What all families have: `FamilyKeys`; `mean` and `std` are those of BGR values.
    """

    model: Annotated[partial[nn.Module], MODELS]
    data: Annotated[partial[Data], DATA]
    loss: tuple[Annotated[partial[TextLoss], LOSSES, check_part], ...]
    metric: Annotated[partial[Any], METRICS] = partial(ReadingAccuracy)
    transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    eval_transforms: tuple[Annotated[partial[Transform], TRANSFORMS, check_part], ...] = ()
    mean: Colours = (0.5, 0.5, 0.5)
    std: Colours = (0.5, 0.5, 0.5)
    networks: dict[str, Annotated[partial[nn.Module], MODELS]] | None = None
    characters: Dictionary = Dictionary()  # noqa: RUF009 - frozen
    image_size: Size = (32, 100)
    train_image_sizes: tuple[Size, ...] = ()
    keep_ratio: bool = True
    concatenate: Concatenate | None = None

    def __post_init__(self) -> None:
        check_size('image_size', self.image_size)
        for size in self.train_image_sizes:
            check_size('train_image_sizes', size)


class Recognition(Family):
    """The Task, made from the keys of a recipe."""

    Keys = RecognitionKeys
    channels = 'BGR'

    def __init__(self, keys: RecognitionKeys) -> None:
        super().__init__(keys)
        self.dictionary, self.image_size, self.keep_ratio = keys.characters, keys.image_size, keys.keep_ratio
        self.train_image_sizes = keys.train_image_sizes or (keys.image_size,)
        self.concatenate = keys.concatenate

    @cached_property
    def characters(self) -> Characters:
        """Read when first asked for: a recipe can be checked where its dictionary is not."""
        return self.dictionary.read()

    @property
    def heads(self) -> frozenset[str]:
        """The heads of a network that the losses train."""
        return frozenset().union(*(loss.heads for loss, _ in self.losses))

    def encoder(self, split: Split) -> Encoder:
        guide = next((head for head in get_args(Guide) if head in self.heads), None)
        return Encoder(self.characters, guide, trains=split == 'train')

    def resolved_names(self) -> dict[str, tuple[str, ...]]:
        named = self.dictionary.dictionary
        return {'characters.dictionary': read_dictionary(named)} if isinstance(named, Path) else {}

    def labels(self, names: Sequence[str] | None = None) -> list[Sequence[str]]:
        """Of the CTC head, of the attention heads, of the characters that go into them."""
        return row_labels(self.characters.characters if names is None else names)

    def model(self) -> nn.Module:
        """Raises FileNotFoundError or ValueError when the dictionary cannot be read, ValueError when networks do not fit."""
        return self.build_network(len(self.characters))

    def check_fits(self, network: Any, called: str) -> None:
        """Raises ValueError when a network does not take the images, or has other heads than the loss trains."""
        for height, _ in (self.image_size, *self.train_image_sizes):
            if height not in network.heights:
                takes = f'{network.heights[0]} to {network.heights[-1]}'
                raise ValueError(f'image_size: the {called} takes lines {takes} pixels high, got {height}')
        if network.heads != self.heads:
            has, trains = (' and '.join(sorted(heads)) for heads in (network.heads, self.heads))
            fitting = [each for each, loss in LOSSES.items() if loss.heads == network.heads]
            fitting += [f'[{", ".join(sorted(network.heads))}]'] * (not fitting and network.heads <= LOSSES.keys())
            cure = f'; use {" or ".join(fitting)}' if fitting else ''
            raise ValueError(f'loss: does not fit the {called}, which has the heads {has}; it trains {trains}{cure}')

    def dataset(self, split: Split) -> Samples:
        source, transforms, encoder = self.source(split), self.transforms[split], self.encoder(split)
        if split == 'eval':
            return Samples(source, transforms, split, encoder, self.keep_ratio, (self.image_size,))
        return Samples(source, transforms, split, encoder, self.keep_ratio, self.train_image_sizes, self.concatenate)

    def survey(self, split: Split) -> TextSurvey:
        """The samples of a split as they lie in their files, for `phalanx data check`."""
        height, width = self.image_size
        places = None
        if 'ctc' in self.heads:
            with torch.no_grad():
                places = self.network(len(self.characters)).eval()(torch.zeros(1, 3, height, width)).ctc.shape[1]
        return TextSurvey(self.data().split(split), self.characters, self.encoder(split).targets, places, width)

    rewritten_as = ('lmdb',)

    def rewrite(self, split: Split, out: Path, *, form: str) -> dict[str, object]:
        """Rewrites the samples of a split as they are in their files, for `phalanx data rewrite`."""
        folder = {'train': 'train', 'eval': 'val'}[split]
        write_lmdb(self.source(split), out / folder)
        return {'name': 'lmdb_sets', split: [folder]}

    def collate(self, samples: Sequence[Sample]) -> RecognitionBatch:
        """Raises ValueError when the images differ in size."""
        shapes = {sample.image.shape for sample in samples}
        if len(shapes) > 1:
            sizes = sorted(f'{width} x {height}' for _, height, width in shapes)
            raise ValueError(f'the images of a batch differ in size: {", ".join(sizes)}')
        images = stacked([sample.image for sample in samples])
        widths = torch.tensor([sample.width for sample in samples])
        texts = Texts(
            padded([sample.ctc for sample in samples], self.dictionary.max_length),
            torch.tensor([len(sample.ctc) for sample in samples]),
            padded([sample.guide for sample in samples], self.dictionary.max_length),
            widths / images.shape[3],
        )
        labels, unknown = zip(*((sample.label, sample.unknown) for sample in samples), strict=True)
        return RecognitionBatch(images, widths, texts, labels, unknown)

    def network_input(self, batch: RecognitionBatch) -> Tensor:
        """As of every family, and zero where a line ends."""
        images = super().network_input(batch)
        columns = torch.arange(images.shape[3], device=images.device)
        return images.masked_fill_(columns >= batch.widths[:, None, None, None], 0)

    @property
    def has_fixed_size(self) -> bool:
        return len(self.train_image_sizes) == 1

    def outputs(self, model: nn.Module, batch: RecognitionBatch) -> Any:
        return model(self.network_input(batch), batch.texts)

    def supervised_loss(self, outputs: Any, batch: RecognitionBatch, whole: WholeStep) -> Loss:
        return sum_losses((loss(outputs, batch.texts), coefficient) for loss, coefficient in self.losses)

    def supervised_weights(self, batch: RecognitionBatch) -> dict[str, Tensor] | None:
        return collect_weights(loss.weights(batch.texts, len(self.characters)) for loss, _ in self.losses)

    def predict(self, model: Any, batch: RecognitionBatch) -> list[Reading]:
        readings: list[Reading] = model.decode(model(self.network_input(batch)), self.characters)
        return readings

    def metric(self) -> Any:
        return self.make_metric()

    def request(self, image: Image) -> Sample:
        """A line of unknown text, wider than `image_size` where it needs to be, as the originals predict."""
        shown, width = fitted_line(image, self.image_size, keep_ratio=self.keep_ratio, grow=self.keep_ratio)
        return Sample(channels_first(shown), width, '', 0, [], [])

    def picture(self, sample: Sample, result: Reading) -> list[tuple[str, Image]]:
        shown = sample.image[:, :, : sample.width].permute(1, 2, 0).numpy()
        return drawing.compared(shown, sample.label, result)

    writers = drawing.WRITERS

    def export(self, model: Any, *, post_processing: bool = False) -> Export:
        """The CTC logits; choosing characters is the caller's."""
        in_proportion = 'in proportion, rounded up, at most that of the input; then zeros after normalisation'
        width = in_proportion if self.keep_ratio else 'that of the input'
        preparation = {
            'resize': {'height': 'that of the input', 'width': width, 'interpolation': 'linear'},
            'image_size': self.image_size,
            'keep_ratio': self.keep_ratio,
            'grow': 'of a longer line than `image_size` has room for, the input gets wider: int(height * ratio of the sides)',
            **self.pixels,
        }
        network, outputs = model.exported(post_processing=post_processing)
        return Export(
            network,
            outputs,
            preparation,
            {'characters': self.characters.characters, 'blank': BLANK, 'first_character': BLANK + 1},
            dynamic={3: model.width_step} if self.keep_ratio else {},
        )
