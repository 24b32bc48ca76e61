"""Recognition: the text of an image of one line. This file is the family's table of contents, and its part of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from phalanx.config.options import check_size, check_std
from phalanx.data.batch import Tensors, shares
from phalanx.data.image import channels_first, normalised, stacked
from phalanx.data.samples import Draw, Image, SampleError, Split
from phalanx.families.distillation import DISTILLATIONS, Distilled, NetworkLoss, own_losses
from phalanx.families.losses import summed, weighted, weights_of
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
from phalanx.families.recognition.data import DATA, Data, Source
from phalanx.families.recognition.data.lmdb_sets import write_lmdb
from phalanx.families.recognition.data.source import Chance, TextImage
from phalanx.families.recognition.loss import LOSSES, TextLoss
from phalanx.families.recognition.metric import Comparison, ReadingAccuracy
from phalanx.families.recognition.models import MODELS
from phalanx.families.recognition.survey import TextSurvey
from phalanx.families.recognition.texts import Texts
from phalanx.families.recognition.transforms import TRANSFORMS, Concatenate, Transform
from phalanx.families.task import Export, FromSource, Loss, tried
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import RESIZING, fitted_line
from phalanx.runtime.recognition import BLANK
from phalanx.runtime.results import Reading

Size = tuple[int, int]  # width, height

Guide = Literal['sar', 'nrtr']  # heads that learn along with CTC

STUDENT = 'student'
LETTERS_AND_DIGITS = Dictionary()
AS_PUBLISHED = Comparison()


@dataclass(frozen=True)
class Sample:
    image: Tensor  # uint8 [3, h, w], what the network will see
    width: int  # columns of it, from the left, that the line fills
    label: str  # the text, without characters that the dictionary has not
    unknown: int  # how many those are
    ctc: list[int]
    guide: list[int]


@dataclass(frozen=True)
class RecognitionBatch(Tensors):
    """Samples of one image size."""

    images: Tensor  # uint8 [B, 3, h, w]
    widths: Tensor  # int64 [B]
    texts: Texts
    labels: tuple[str, ...]
    unknown: int

    def __len__(self) -> int:
        return len(self.images)

    def split(self, parts: int) -> list[Self]:
        fields = (shares(self.images, parts), shares(self.widths, parts), self.texts.split(parts), shares(self.labels, parts))
        return [
            replace(self, images=images, widths=widths, texts=texts, labels=labels)
            for images, widths, texts, labels in zip(*fields, strict=True)
        ]


@dataclass(frozen=True)
class Encoder:
    """A line -> a Sample: fitted to the network's input, and its text in numbers."""

    characters: Characters
    keep_ratio: bool
    guide: Guide | None  # the attention decoder whose target the text is too
    trains: bool = True  # else the text is only compared with what is read, and may be of any length

    def sample(self, line: TextImage, size: Size) -> Sample:
        """Raises UnusableTextError when the text cannot be a target."""
        image, text = line
        encoded, guide = self.targets(text)
        shown, width = fitted_line(image, size, keep_ratio=self.keep_ratio)
        return Sample(channels_first(shown), width, *encoded, guide)

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

    def request(self, image: Image, size: Size) -> Sample:
        """A line of unknown text, wider than `size` where it needs to be, as the originals predict."""
        shown, width = fitted_line(image, size, keep_ratio=self.keep_ratio, grow=self.keep_ratio)
        return Sample(channels_first(shown), width, '', 0, [], [])


@dataclass(frozen=True)
class Samples(FromSource):
    """The samples of one split, augmented, fitted and encoded."""

    source: Source
    encoder: Encoder
    sizes: tuple[Size, ...]  # a step draws one of them for all its samples
    concatenate: Concatenate | None = None
    transforms: tuple[Transform, ...] = ()

    def original(self, draw: Draw) -> Image:
        return self.source.read(draw, Chance(draw))[0]

    def __getitem__(self, draw: Draw) -> Sample:
        chance = Chance(draw)
        image, text = self.source.read(draw, chance)
        if self.concatenate is not None:
            others = partial(self._another, draw, chance)
            image, text = self.concatenate((image, text), others, chance.rng(), self.encoder.accepts)
        for transform in self.transforms:
            image = transform(image, chance.rng())
        size = self.sizes[draw.step_rng().integers(len(self.sizes))] if len(self.sizes) > 1 else self.sizes[0]
        try:
            return self.encoder.sample((image, text), size)
        except UnusableTextError as error:
            raise SampleError(f'{self.name(draw.index)}: {error}') from None

    def _another(self, draw: Draw, chance: Chance) -> TextImage | None:
        try:
            return self.source.read(draw.of(int(chance.rng().integers(len(self)))), chance)
        except SampleError:  # it is reported when its own turn comes
            return None


class Recognition:
    """The Task, made from the keys of a recipe.

    `characters`: which there are. `size` (width, height) is that of the network's input; of `train_sizes`, where given, each
    training step draws one for all its samples. (PaddleOCR's MultiScaleSampler also gives small sizes more samples, and can
    choose the width by the ratio of sides of the lines in the batch; here the global batch stays as the recipe says, and which
    lines meet in it does not depend on their size.) A line keeps its ratio of sides, the rest of the width being empty, or is
    stretched with `keep_ratio` false. `concatenate` puts lines behind one another, before the `transforms`. `compare`: which
    differences of texts the metric ignores. `loss` lists what the network learns from, each multiplied by its one of
    `loss_coefficients` (all 1 when there are none). `mean` and `std` are those of BGR values between 0 and 1, for the
    normalisation.

    Distillation: `model` is the student, `networks` names others that see the same batches, `between` says what they learn from
    one another; each learns from `loss` too, unless it is in `frozen`; `train.init_networks` says from where they start. Raises
    ValueError for options of parts that cannot be.
    """

    def __init__(
        self,
        *,
        model: Annotated[partial[nn.Module], MODELS],
        data: Annotated[partial[Data], DATA],
        loss: tuple[Annotated[partial[TextLoss], LOSSES, tried], ...],
        loss_coefficients: tuple[float, ...] = (),
        characters: Dictionary = LETTERS_AND_DIGITS,
        size: tuple[int, int] = (100, 32),
        train_sizes: tuple[tuple[int, int], ...] = (),
        keep_ratio: bool = True,
        concatenate: Concatenate | None = None,
        transforms: tuple[Annotated[partial[Transform], TRANSFORMS, tried], ...] = (),
        compare: Comparison = AS_PUBLISHED,
        networks: dict[str, Annotated[partial[nn.Module], MODELS]] | None = None,
        between: tuple[Annotated[partial[NetworkLoss], DISTILLATIONS], ...] = (),
        frozen: tuple[str, ...] = (),
        mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
        std: tuple[float, float, float] = (0.5, 0.5, 0.5),
        judged_by: Literal['accuracy', 'edit_similarity'] = 'accuracy',
    ) -> None:
        for one in (size, *train_sizes):
            check_size('size', one)
        check_std(std)
        if STUDENT in (networks or {}):
            raise ValueError(f'networks: {STUDENT!r} is the name of `model`; give the others another one')
        if bool(networks) != bool(between):
            raise ValueError('distillation needs both: `networks` beside the model, and what is learned `between` them')
        self.network, self.data, self.losses = model, data, weighted(loss, loss_coefficients)
        self.dictionary, self.size, self.keep_ratio = characters, size, keep_ratio
        self.train_sizes = train_sizes or (size,)
        self.concatenate, self.transforms = concatenate, tuple(transform() for transform in transforms)
        self.compare, self.judged_by = compare, judged_by
        self.networks, self.between = networks or {}, tuple(loss() for loss in between)
        self.frozen, self.mean, self.std = frozen, mean, std

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
        return Encoder(self.characters, self.keep_ratio, guide, trains=split == 'train')

    def settled(self) -> dict[str, tuple[str, ...]]:
        named = self.dictionary.dictionary
        return {'characters.dictionary': read_dictionary(named)} if isinstance(named, Path) else {}

    def labels(self, names: Sequence[str] | None = None) -> list[Sequence[str]]:
        """Of the CTC head, of the attention heads, of the characters that go into them."""
        return row_labels(self.characters.characters if names is None else names)

    tie_breakers = ('edit_similarity',)

    def model(self) -> nn.Module:
        """Raises FileNotFoundError or ValueError when the dictionary cannot be read, ValueError when networks do not fit."""
        variants = {STUDENT: self.network, **self.networks}
        networks = {name: variant(len(self.characters)) for name, variant in variants.items()}
        for name, network in networks.items():
            self._check_fits(network, name)
        if not self.networks:
            return networks[STUDENT]
        return Distilled(networks, student=STUDENT, frozen=self.frozen)

    def _check_fits(self, network: Any, name: str) -> None:
        """Raises ValueError when a network does not take the images, or has other heads than the loss trains."""
        for _, height in (self.size, *self.train_sizes):
            if height not in network.heights:
                takes = f'{network.heights[0]} to {network.heights[-1]}'
                raise ValueError(f'size: the {name} network takes lines {takes} pixels high, got {height}')
        if network.heads != self.heads:
            has, trains = (' and '.join(sorted(heads)) for heads in (network.heads, self.heads))
            fitting = [each for each, loss in LOSSES.items() if loss.heads == network.heads]
            fitting += [f'[{", ".join(sorted(network.heads))}]'] * (not fitting and network.heads <= LOSSES.keys())
            cure = f'; use {" or ".join(fitting)}' if fitting else ''
            raise ValueError(f'loss: does not fit the {name} network, which has the heads {has}; it trains {trains}{cure}')

    def dataset(self, split: Split) -> Samples:
        source = self._whole(split)
        if split == 'eval':
            return Samples(source, self.encoder(split), (self.size,))
        return Samples(source, self.encoder(split), self.train_sizes, self.concatenate, self.transforms)

    def survey(self, split: Split) -> TextSurvey:
        """The samples of a split as they lie in their files, for `phalanx data check`."""
        width, height = self.size
        places = None
        if 'ctc' in self.heads:
            with torch.no_grad():
                places = self.network(len(self.characters)).eval()(torch.zeros(1, 3, height, width)).ctc.shape[1]
        return TextSurvey(self.data().split(split), self.characters, self.encoder(split).targets, places, width)

    rewritten_as = ('lmdb',)

    def rewrite(self, split: Split, out: Path, *, form: str) -> dict[str, object]:
        """Rewrites the samples of a split as they are in their files, for `phalanx data rewrite`."""
        folder = {'train': 'train', 'eval': 'val'}[split]
        write_lmdb(self._whole(split), out / folder)
        return {'name': 'lmdb_sets', split: [folder]}

    def _whole(self, split: Split) -> Source:
        """The samples of a split. Raises FileNotFoundError when files are missing."""
        source = self.data().split(split)
        source.check_files()
        return source

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
        labels = tuple(sample.label for sample in samples)
        return RecognitionBatch(images, widths, texts, labels, sum(sample.unknown for sample in samples))

    def network_input(self, batch: RecognitionBatch) -> Tensor:
        return network_input(batch, self.mean, self.std)

    @property
    def has_fixed_size(self) -> bool:
        return len(self.train_sizes) == 1

    def align(self, batch: RecognitionBatch, whole: WholeStep) -> RecognitionBatch:
        return batch

    def outputs(self, model: nn.Module, batch: RecognitionBatch) -> Any:
        return model(self.network_input(batch), batch.texts)

    def loss(self, outputs: Any, batch: RecognitionBatch, whole: WholeStep) -> Loss:
        if not self.networks:
            return self.loss_of_texts(outputs, batch.texts)
        terms = dict(own_losses(outputs, partial(self.loss_of_texts, texts=batch.texts), of=self.learners))
        for between in self.between:
            terms |= between(outputs)
        return terms

    def loss_of_texts(self, outputs: Any, texts: Texts) -> Loss:
        return summed((loss(outputs, texts), coefficient) for loss, coefficient in self.losses)

    def weights(self, batch: RecognitionBatch) -> dict[str, Tensor] | None:
        own = weights_of(loss.weights(batch.texts, len(self.characters)) for loss, _ in self.losses)
        if not self.networks or own is None:
            return own
        samples = torch.full((), float(len(batch)), dtype=torch.float64, device=batch.images.device)
        of_networks = {f'{term}_{name}': weight for name in self.learners for term, weight in own.items()}
        return of_networks | {between.name: samples for between in self.between}

    @property
    def learners(self) -> list[str]:
        """The networks that learn from the texts."""
        return [name for name in (STUDENT, *self.networks) if name not in self.frozen]

    def predict(self, model: Any, batch: RecognitionBatch) -> list[Reading]:
        readings: list[Reading] = model.decode(model(self.network_input(batch)), self.characters)
        return readings

    sees_whole_step = False

    def predictions(self, made: Sequence[Reading]) -> list[Reading]:
        return list(made)

    def metric(self) -> ReadingAccuracy:
        return ReadingAccuracy(self.compare)

    def request(self, image: Image) -> Sample:
        return self.encoder('eval').request(image, self.size)

    def results(self, prediction: list[Reading], batch: RecognitionBatch) -> list[Reading]:
        return prediction

    def picture(self, sample: Sample, result: Reading) -> list[tuple[str, Image]]:
        shown = sample.image[:, :, : sample.width].permute(1, 2, 0).numpy()
        return drawing.compared(shown, sample.label, result)

    def drawn(self, result: Reading, image: Image) -> Image:
        return drawing.with_words(image, drawing.said(result))

    def save(self, result: Reading, image: Image, stem: Path) -> list[Path]:
        return drawing.save(result, image, stem)

    def export(self, model: Any, *, post_processing: bool = False) -> Export:
        """The CTC logits, of the student where several networks were trained; choosing characters is the caller's."""
        in_proportion = 'in proportion, rounded up, at most that of the input; then zeros after normalisation'
        width = in_proportion if self.keep_ratio else 'that of the input'
        preparation = {
            'resize': {'height': 'that of the input', 'width': width, 'interpolation': 'linear'},
            'size': self.size,
            'keep_ratio': self.keep_ratio,
            'grow': 'of a longer line than `size` has room for, the input gets wider: int(height * ratio of the sides)',
            'resizing': RESIZING,
            'channels': 'BGR',
            'mean': self.mean,
            'std': self.std,
        }
        network, outputs = model.exported(post_processing=post_processing)
        return Export(
            network,
            outputs,
            preparation,
            {'characters': self.characters.characters, 'blank': BLANK, 'first_character': BLANK + 1},
            dynamic={3: model.width_step} if self.keep_ratio else {},
        )


def network_input(batch: RecognitionBatch, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalised images [B, 3, h, w], BGR as the originals' weights want them, and zero where a line ends."""
    images = normalised(batch.images.flip(1), mean, std)
    columns = torch.arange(images.shape[3], device=images.device)
    return images.masked_fill_(columns >= batch.widths[:, None, None, None], 0)
