"""Task and recipe keys of text recognition: reads the text of an image of one line."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from phalanx.config.options import check_size
from phalanx.data.batch import ImageBatch, channels_first, stack_images
from phalanx.data.samples import Dataset, Draw, Image, Rng, SampleError, Split
from phalanx.families.base import Colours, Family, FamilyKeys, check_part
from phalanx.families.export import Export
from phalanx.families.losses import collect_weights, sum_losses
from phalanx.families.recognition import draw as drawing
from phalanx.families.recognition.characters import (
    Characters,
    Dictionary,
    EncodedText,
    UnusableTextError,
    pad_rows,
    read_dictionary,
    row_labels,
)
from phalanx.families.recognition.data import DATA, Data
from phalanx.families.recognition.data.label_files import known_texts
from phalanx.families.recognition.data.lmdb_sets import write_lmdb
from phalanx.families.recognition.data.source import TextImage
from phalanx.families.recognition.loss import LOSSES, TextLoss, check_outputs
from phalanx.families.recognition.metric import METRICS, ReadingAccuracy
from phalanx.families.recognition.models import MODELS
from phalanx.families.recognition.survey import LineSurvey, ctc_steps_needed
from phalanx.families.recognition.texts import Label, Texts
from phalanx.families.recognition.transforms import TRANSFORMS, Concatenate, Transform, limit_size
from phalanx.families.task import Loss
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import Size, fit_line
from phalanx.runtime.recognition import BLANK
from phalanx.runtime.results import Reading

Guide = Literal['sar', 'nrtr']  # attention heads trained along with CTC (GTC: guided training of CTC)


@dataclass(frozen=True)
class Sample:
    """One line, resized and encoded."""

    image: Tensor  # uint8 [3, h, w], input of the network before normalisation
    width: int  # columns that the line fills, from the left
    label: Label
    ctc: list[int]  # target of CTC
    guide: list[int]  # target of the attention head, empty without one
    index: int = 0  # of the sample in its data set


@dataclass(frozen=True)
class RecognitionBatch(ImageBatch):
    """Batch of lines of one image size."""

    widths: Tensor  # int64 [B], columns that each line fills
    texts: Texts
    truths: tuple[Label, ...]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class TargetEncoder:
    """Encoder of texts for all heads."""

    characters: Characters
    guide: Guide | None  # the attention head, if any
    trains: bool = True  # False: only the label for the metric is needed, and the text may be of any length

    def targets(self, text: str) -> tuple[EncodedText, list[int]]:
        """Return the targets of CTC and of the attention head. Raises UnusableTextError if a head cannot learn the text."""
        if not self.trains:
            return self.characters.encode_label(text), []
        guides = {'sar': self.characters.encode_sar, 'nrtr': self.characters.encode_nrtr}
        return self.characters.encode(text), guides[self.guide](text) if self.guide else []

    def accepts(self, text: str) -> bool:
        """True if the text can be a target of every head."""
        try:
            self.targets(text)
        except UnusableTextError:
            return False
        return True


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    """Samples of one split, augmented, resized to the input of the network, and encoded."""

    encoder: TargetEncoder
    keep_ratio: bool
    sizes: tuple[Size, ...]  # each step draws one of them for all its samples
    concatenate: Concatenate | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, draw: Draw) -> Sample:
        image, text = self.source.read(draw)
        image = limit_size(image)
        # Augment. A generator costs half as much as decoding a word image, so it is created only if something draws from it.
        if self.concatenate is not None or self.transforms:
            rng = draw.rng()
            if self.concatenate is not None:
                image, text = self.concatenate((image, text), partial(self._another, draw, rng), rng, self.encoder.accepts)
            for transform in self.transforms:
                image, text = transform(image, text, rng)
        # Choose the input size with the generator of the step: all samples of a step need the same size.
        size = self.sizes[draw.step_rng().integers(len(self.sizes))] if len(self.sizes) > 1 else self.sizes[0]
        try:
            encoded, guide = self.encoder.targets(text)
        except UnusableTextError as error:
            raise SampleError(f'{self.name(draw.index)}: {error}') from None
        # Resize last: augmentations work at the size of the image.
        fitted, width = fit_line(image, size, keep_ratio=self.keep_ratio)
        text, unknown, ctc = encoded
        return Sample(channels_first(fitted), width, Label(text, unknown), ctc, guide, draw.index)

    def _another(self, draw: Draw, rng: Rng) -> TextImage | None:
        try:
            image, text = self.source.read(draw.of(int(rng.integers(len(self)))))
            image = limit_size(image)
        except SampleError:  # reported when this sample itself is drawn
            return None
        return image, text


@dataclass(frozen=True, kw_only=True)
class RecognitionKeys(FamilyKeys):
    """Keys of a recognition recipe, besides those of all families (`FamilyKeys`).

    `characters`: the dictionary. `image_size`: (height, width) of the network's input. `train_image_sizes`: sizes of which each
    training step draws one for all its samples; default: `image_size` alone. (PaddleOCR's MultiScaleSampler also puts more
    samples of small size into a batch, and can choose the width by the aspect ratios in the batch; here the global batch size
    is constant, and the samples of a batch do not depend on their size.) `keep_ratio`: keep the aspect ratio of a line and pad
    the width, instead of stretching the line. `concatenate`: join lines, before `transforms`. `mean`, `std`: of BGR values.
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
    """Task of text recognition."""

    Keys = RecognitionKeys
    network_needs = ('heads', 'heights', 'width_step', 'decode', 'exported')
    loss_needs = ('weights', 'heads')
    channels = 'BGR'

    def __init__(self, keys: RecognitionKeys) -> None:
        super().__init__(keys)
        self.dictionary, self.image_size, self.keep_ratio = keys.characters, keys.image_size, keys.keep_ratio
        self.train_image_sizes = keys.train_image_sizes or (keys.image_size,)
        self.concatenate = keys.concatenate

    @cached_property
    def characters(self) -> Characters:
        """Characters of the dictionary, read on first use: a recipe can be checked where its dictionary is missing."""
        return self.dictionary.read()

    @property
    def heads(self) -> frozenset[str]:
        """Heads of the network that the losses train."""
        return frozenset().union(*(loss.heads for loss, _ in self.losses))

    def encoder(self, split: Split) -> TargetEncoder:
        """Return the encoder of the texts of `split`."""
        guide = next((head for head in get_args(Guide) if head in self.heads), None)
        return TargetEncoder(self.characters, guide, trains=split == 'train')

    def resolved_names(self) -> dict[str, tuple[str, ...]]:
        dictionary = self.dictionary.dictionary
        return {'characters.dictionary': read_dictionary(dictionary)} if isinstance(dictionary, Path) else {}

    def labels(self, names: Sequence[str] | None = None) -> list[Sequence[str]]:
        """Return the meaning of the rows of each head, see `row_labels`."""
        return row_labels(self.characters.characters if names is None else names)

    def model(self) -> nn.Module:
        """Build the network.

        Raises FileNotFoundError or ValueError for an unreadable dictionary, and ValueError for networks that do not fit.
        """
        return self.build_network(len(self.characters))

    def check_fits(self, network: Any, role: str) -> None:
        """Raise ValueError if a network does not accept the height of the images, or has other heads than the losses train."""
        # The backbones leave one row per line only for these heights.
        for height, _ in (self.image_size, *self.train_image_sizes):
            if height not in network.heights:
                takes = f'{network.heights[0]} to {network.heights[-1]}'
                raise ValueError(f'image_size: the {role} takes lines {takes} pixels high, got {height}')
        # A head without a loss would get no gradient, a loss without its head has no input.
        if network.heads != self.heads:
            has, trains = (' and '.join(sorted(heads)) for heads in (network.heads, self.heads))
            # Suggest a single loss for these heads or, if there is none, one loss per head.
            fitting = [each for each, loss in LOSSES.items() if loss.heads == network.heads]
            fitting += [f'[{", ".join(sorted(network.heads))}]'] * (not fitting and network.heads <= LOSSES.keys())
            cure = f'; use {" or ".join(fitting)}' if fitting else ''
            raise ValueError(f'loss: does not fit the {role}, which has the heads {has}; it trains {trains}{cure}')

    def dataset(self, split: Split) -> Samples:
        source, transforms, encoder = self.source(split), self.transforms[split], self.encoder(split)
        if split == 'eval':
            return Samples(source, transforms, split, encoder, self.keep_ratio, (self.image_size,))
        notes = self._note_long_texts(source)
        return Samples(source, transforms, split, encoder, self.keep_ratio, self.train_image_sizes, self.concatenate, notes)

    def survey(self, split: Split) -> LineSurvey:
        """Return statistics of the samples of a split as stored, for `phalanx data check`."""
        targets, width = self.encoder(split).targets, self.image_size[1]
        return LineSurvey(self.data().split(split), self.characters, targets, self._time_steps, width)

    @cached_property
    def _time_steps(self) -> int | None:
        """Outputs of the CTC head along a line, which depend on the strides of the backbone; None without that head."""
        if 'ctc' not in self.heads:
            return None
        with torch.no_grad():
            output = self.network(len(self.characters)).eval()(torch.zeros(1, 3, *self.image_size)).ctc
        return int(output.shape[1])

    def _note_long_texts(self, source: Any) -> tuple[str, ...]:
        """Return a warning about texts from which CTC learns nothing, as far as texts are known without reading images."""
        needed = [ctc_steps_needed(text) for text in known_texts(source)]
        # The networks have a time step for every eighth column at least: short texts need no forward pass.
        if max(needed, default=0) <= self.image_size[1] // 8 or self._time_steps is None:
            return ()
        count = sum(steps > self._time_steps for steps in needed)
        if not count:
            return ()
        height, width = self.image_size
        wider = math.ceil(max(needed) * width / self._time_steps / 32) * 32
        return (
            f'train data: {count:,} of {len(needed):,} texts ({count / len(needed):.0%}) are too long for the width of '
            f'{width}, so nothing is learned from them; the longest needs image_size: [{height}, {wider}]',
        )

    rewritten_as = ('lmdb',)

    def rewrite(self, split: Split, out: Path, *, form: str) -> dict[str, object]:
        """Write the samples of a split as stored to LMDB, for `phalanx data rewrite`; return the keys of `data` for them."""
        folder = {'train': 'train', 'eval': 'val'}[split]
        write_lmdb(self.source(split), out / folder)
        return {'name': 'lmdb_sets', split: [folder]}

    def collate(self, samples: Sequence[Sample]) -> RecognitionBatch:
        """Stack samples. Raises ValueError if the images differ in size."""
        shapes = {sample.image.shape for sample in samples}
        if len(shapes) > 1:
            sizes = sorted(f'{width} x {height}' for _, height, width in shapes)
            raise ValueError(f'the images of a batch differ in size: {", ".join(sizes)}')
        images = stack_images([sample.image for sample in samples])
        widths = torch.tensor([sample.width for sample in samples])
        texts = Texts(
            pad_rows([sample.ctc for sample in samples], self.dictionary.max_length),
            torch.tensor([len(sample.ctc) for sample in samples]),
            pad_rows([sample.guide for sample in samples], self.dictionary.max_length),
            widths / images.shape[3],
        )
        truths, indices = zip(*((sample.label, sample.index) for sample in samples), strict=True)
        return RecognitionBatch(images, widths, texts, truths, indices)

    def network_input(self, batch: RecognitionBatch) -> Tensor:
        """Return the normalised images, 0 to the right of each line: padding is 0 after normalisation, as in PaddleOCR."""
        # Exactly 0 beyond the line; black pixels would become -mean / std.
        images = super().network_input(batch)
        columns = torch.arange(images.shape[3], device=images.device)
        return images.masked_fill_(columns >= batch.widths[:, None, None, None], 0)

    @property
    def has_fixed_size(self) -> bool:
        return len(self.train_image_sizes) == 1

    def outputs(self, model: nn.Module, batch: RecognitionBatch) -> Any:
        return model(self.network_input(batch), batch.texts)

    def supervised_loss(self, outputs: Any, batch: RecognitionBatch, whole: WholeStep) -> Loss:
        check_outputs(outputs, [loss for loss, _ in self.losses], batch.texts, len(self.characters))
        return sum_losses((loss(outputs, batch.texts), coefficient) for loss, coefficient in self.losses)

    def supervised_weights(self, batch: RecognitionBatch) -> dict[str, Tensor] | None:
        return collect_weights(loss.weights(batch.texts, len(self.characters)) for loss, _ in self.losses)

    def begin_prediction(self, model: Any, batch: RecognitionBatch) -> Callable[[], list[Reading]]:
        readings: list[Reading] = model.decode(model(self.network_input(batch)), self.characters)
        return lambda: readings

    def metric(self) -> Any:
        return self.make_metric()

    def request(self, image: Image) -> Sample:
        """Prepare a line for prediction, wider than `image_size` if its aspect ratio needs it, as PaddleOCR does."""
        # `grow` as in PaddleOCR: squeezing a long line would make it unreadable.
        fitted, width = fit_line(image, self.image_size, keep_ratio=self.keep_ratio, grow=self.keep_ratio)
        return Sample(channels_first(fitted), width, Label(''), [], [])

    def picture(self, sample: Sample, result: Reading) -> list[tuple[str, Image]]:
        line = sample.image[:, :, : sample.width].permute(1, 2, 0).numpy()
        return drawing.draw_comparison(line, sample.label.text, result)

    writers = drawing.WRITERS

    def export(self, model: Any, *, post_processing: bool = False) -> Export:
        """Export the network: CTC logits, or the greedy classes and their probabilities with `post_processing`."""
        in_proportion = 'in proportion, rounded up, at most that of the input; then zeros after normalisation'
        width = in_proportion if self.keep_ratio else 'that of the input'
        preparation = {
            'resize': {'height': 'that of the input', 'width': width, 'interpolation': 'linear'},
            'image_size': self.image_size,
            'keep_ratio': self.keep_ratio,
            'grow': 'for a line too long for `image_size` the input gets wider: int(height * width / height of the line)',
            **self.pixels,
        }
        network, outputs = model.exported(post_processing=post_processing)
        return Export(
            network,
            outputs,
            preparation,
            {'characters': self.characters.characters, 'blank': BLANK, 'first_character': BLANK + 1}
            | ({'right_to_left': True} if self.characters.right_to_left else {}),
            dynamic={3: model.width_step} if self.keep_ratio else {},
        )
