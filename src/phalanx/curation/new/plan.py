"""Input sizes, batch size and length of a training run that suit a data set and this node.

The constants come from trained recipes (docs/benchmarks.md): samples that a network needs from scratch, and sizes of small
objects.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from phalanx.curation.new.published import Start
from phalanx.curation.prepare.samples import Family
from phalanx.curation.prepare.targets import Written
from phalanx.engine.evaluator import RAW_SHARE
from phalanx.engine.timeline import in_steps
from phalanx.runtime.views import SLACK
from phalanx.system.cores import count_cores

# Samples seen in training: (on a CPU, on a GPU). With fewer, a network from scratch learns little more than where objects are.
WANTED: dict[Family, tuple[int, int]] = {
    'detection': (15_000, 200_000),
    'segmentation': (12_000, 120_000),
    'recognition': (80_000, 1_000_000),
    'table': (8_000, 200_000),
    'text_detection': (8_000, 200_000),
}
BATCH: dict[Family, tuple[int, int]] = {
    'detection': (16, 32),
    'segmentation': (8, 16),
    'recognition': (16, 128),
    'table': (8, 32),
    'text_detection': (8, 16),
}
CORE_RATE = 2e10  # operations per second of one core in training steps, by which recipes are made longer
SERIAL = 0.1  # share of a step on a CPU that uses one core only
EPOCHS = (5, 400)  # at least and at most
EVALUATIONS = 10  # per run
LONG_EVALUATIONS = 3  # the same in windows, of which an image may have over a hundred
EMA_WINDOWS = 20  # EMA time constants per run, so that the average has forgotten the start
SHORT = 300  # steps; shorter runs have no EMA
PLACE = 4  # columns of the input per time step of CRNN
PUBLISHED_PLACE = 8  # the same for the published recogniser
SEEN = 32  # pixels: shorter side of a small object on the network's input
WRITTEN = 16  # the same for text lines, which are alike
LEAST_SEEN = 16  # pixels of the median object on the network's input; below, large images are seen in windows
RARE = 0.1  # images with the rarest class per image with the most frequent one; below, sampling evens them out,
FEW_CLASSES, MOST_REPEATS = 10, 50  # unless there are more classes, or an image would occur more often per epoch


@dataclass(frozen=True)
class Node:
    """Device and cores of this node."""

    device: str
    cores: int
    bf16: bool = False  # True if bf16 is clearly faster here: on a CPU with matrix instructions (AMX), on others little or not

    @property
    def has_gpu(self) -> bool:
        return self.device == 'cuda'

    def __str__(self) -> str:
        return torch.cuda.get_device_name() if self.has_gpu else f'{self.cores} CPU core{"s" * (self.cores > 1)}'


def describe_node() -> Node:
    if torch.cuda.is_available():
        return Node('cuda', count_cores(), bf16=True)
    return Node('cpu', count_cores(), bf16=torch.cpu._is_amx_tile_supported())


@dataclass(frozen=True)
class Pace:
    """Speed of the parts of a training on this node."""

    rate: float  # training samples per second
    evaluated: float  # time of an evaluated sample, in trained ones
    pictures: float = 0.0  # seconds of the pictures of an evaluation, which one thread draws
    start: float = 0.0  # seconds before the first step


@dataclass(frozen=True)
class Length:
    """Length of a training run in all units."""

    batch: int
    epochs: int
    steps: int
    evaluate_epochs: int
    ema_decay: float | None
    evaluates_start: bool = False  # the initial weights

    @property
    def warmup_steps(self) -> int:
        return max(1, min(500, self.steps // 20))

    @property
    def pictured(self) -> int:
        """Evaluations whose pictures are drawn: all but those of the initial weights and, beside an EMA, of raw weights."""
        return math.ceil(self.epochs / self.evaluate_epochs)

    def evaluations(self, evaluated: int) -> int:
        """Count the passes over `evaluated` evaluation samples; beside an EMA, `Evaluator` evaluates raw weights, too."""
        trained = self.steps * self.batch * self.evaluate_epochs / self.epochs  # samples between two evaluations
        raw = math.ceil(self.pictured / math.ceil(evaluated / (RAW_SHARE * trained))) if self.ema_decay else 0
        return self.pictured + raw + self.evaluates_start

    def seconds(self, evaluated: int, pace: Pace) -> float:
        """Estimate the time with `evaluated` evaluation samples at `pace`."""
        samples = self.steps * self.batch + self.evaluations(evaluated) * evaluated * pace.evaluated
        return pace.start + samples / pace.rate + self.pictured * pace.pictures


def length_of(family: Family, samples: int, node: Node, seen: int | None = None, evaluations: int = EVALUATIONS) -> Length:
    """Choose the length for a number of training samples; `seen`: samples in total, if time is limited."""
    batch = max(min(2, samples), min(BATCH[family][node.has_gpu], samples // 4))  # batch norms need more than one sample
    wanted = seen or WANTED[family][node.has_gpu]
    lowest, highest = EPOCHS if seen is None else (1, 100_000)
    epochs = min(highest, max(lowest, round(wanted / samples)))
    steps = in_steps(epochs, samples / batch)
    decay = None if steps < SHORT else round(min(0.9998, 1 - EMA_WINDOWS / steps), 4)
    return Length(batch, epochs, steps, max(1, epochs // evaluations), decay)


def extend(length: Length, fitting: int, samples: int) -> int:
    """Samples in total of a run that may see `fitting`: the usual number times a power of two."""
    usual = length.steps * length.batch
    most = min(fitting, EPOCHS[1] * samples)
    return usual << max(0, math.floor(math.log2(max(1.0, most / usual))))


def longest_within(seconds: float, choose: Callable[[int], Length], samples: int, evaluated: int, pace: Pace) -> Length:
    """Longest training that takes at most `seconds`, or one epoch; `choose` returns the length for a number of samples seen."""
    most = int(seconds * pace.rate / samples)  # epochs, without evaluations
    lengths = (choose(epochs * samples) for epochs in range(most, 1, -1))
    return next((length for length in lengths if length.seconds(evaluated, pace) <= seconds), choose(samples))


def speed_up(cores: int) -> float:
    """Rate of a training step on several cores relative to one, if a tenth of its work is not shared (Amdahl)."""
    return 1 / (SERIAL + (1 - SERIAL) / cores)


def length_on(start: Start, samples: int, seen: int | None) -> Length:
    """Choose the length of fine-tuning: the samples that `start` needs or `seen`, but at least one epoch."""
    batch = max(1, min(start.batch, samples))
    epochs = max(1, round((seen or start.samples) / samples))
    return Length(batch, epochs, in_steps(epochs, samples / batch), max(1, epochs // 2), None, evaluates_start=True)


def round_to_multiple(value: float, of: int = 32) -> int:
    """Round to the nearest positive multiple."""
    return max(of, round(value / of) * of)


def long_side(sizes: Sequence[tuple[int, int]]) -> int:
    """Median of the longer sides, in pixels."""
    return round(float(np.median([max(size) for size in sizes])))


def _side(written: Written, pixels: int, least: int, most: int) -> int:
    """Side of an input that shows small boxes (10 % quantile) with `pixels` pixels, without enlarging images much."""
    small = float(np.quantile(written.boxes, 0.1)) if written.boxes else 0.1
    return min(round_to_multiple(max(pixels / max(small, 1e-3), least)), round_to_multiple(long_side(written.sizes)), most)


def detection_side(written: Written, node: Node) -> int:
    """Side of the square input, in pixels."""
    return _side(written, SEEN, 192, 640 if node.has_gpu else 320)


def choose_windows(written: Written, node: Node) -> tuple[int, int, str] | None:
    """(side, stride, reason) of windows if resized images would show objects too small; None also if some are too long."""
    if not written.lengths:
        return None
    side = detection_side(written, node)
    seen, longest = float(np.median(written.boxes)) * side, float(np.quantile(written.lengths, 0.99))
    overlap = math.ceil((longest + 2 * SLACK) / 32) * 32
    if seen >= LEAST_SEEN or long_side(written.sizes) < 2 * side or overlap > side // 2:
        return None
    return side, side - overlap, f'resized to {side} x {side}, the median object would be {seen:.1f} pixels across'


def explain_imbalance(written: Written) -> str | None:
    """Words on the rarest class if sampling should even out the classes."""
    if not 1 < len(written.shown) <= FEW_CLASSES:
        return None
    (most, frequent), *_, (least, rare) = written.shown.most_common()
    even = len(written.sizes) / len(written.shown)  # images per class and epoch
    if rare >= RARE * frequent or even > MOST_REPEATS * rare:
        return None
    return f'{least!r} is in {rare:,} training images, {most!r} in {frequent:,}'


def text_sides(written: Written, node: Node) -> tuple[int, int]:
    """(longer side of reduced pages, side of the training crops) in pixels."""
    long, crop = (1280, 640) if node.has_gpu else (640, 320)
    side = _side(written, WRITTEN, 320, long)
    return side, min(side, crop)


def can_mirror(class_names: Sequence[str]) -> bool:
    """True if mirrored objects keep their class; letters, digits, cards, left and right do not."""
    words = {word for name in class_names for word in name.lower().replace('_', ' ').replace('-', ' ').split()}
    single = sum(len(name) == 1 for name in class_names)
    cards = {'ace', 'king', 'queen', 'jack', 'nine', 'ten', 'one', 'two', 'three', 'four', 'five'}
    return not words & {'left', 'right'} and single * 2 <= len(class_names) and len(words & cards) < 3


def segmentation_sides(written: Written, node: Node) -> tuple[int, int]:
    """(longer side of resized images, side of the training crops) in pixels."""
    long = min(long_side(written.sizes), 1024 if node.has_gpu else 512)
    short = float(np.median([min(size) * long / max(size) for size in written.sizes]))
    crop = min(max(64, math.ceil(short / 32) * 32), 512 if node.has_gpu else 256)
    return long, crop


def compute_class_weights(written: Written) -> list[float]:
    """ENet weights 1 / ln(1.1 + share of pixels) (Paszke et al. 2016), scaled to a mean of 1 per pixel."""
    counts = np.array([written.units[name] for name in written.class_names], np.float64)
    shares = counts / max(counts.sum(), 1)
    weights = 1 / np.log(1.1 + shares)
    return [round(float(weight), 2) for weight in weights / max((weights * shares).sum(), 1e-6)]


@dataclass(frozen=True)
class LineSize:
    """Input size of a recogniser of text lines."""

    width: int
    keep_ratio: bool


def line_size(written: Written, node: Node) -> LineSize:
    """Choose the width for lines 32 high: enough time steps for nearly all, and, for more than words, the aspect ratio."""
    wide, long = _nearly_all(written)
    keep = wide > 5  # single words are stretched to the full width, so that all time steps serve them
    width = min(round_to_multiple(max(32 * wide if keep else 0, PLACE * (long + 2), 96), 16), 640 if node.has_gpu else 480)
    return LineSize(width, keep)


def wide_line(written: Written, node: Node) -> int:
    """Width of lines 48 high for a published recogniser, which has a time step per 8 columns."""
    wide, long = _nearly_all(written)
    return min(max(320, round_to_multiple(48 * wide), round_to_multiple(8 * (long + 2))), 1280 if node.has_gpu else 640)


def max_tokens(written: Written, node: Node, has_weights: bool) -> int:
    """Choose the maximum number of tokens of a table: each is a step of the decoder, in memory and time."""
    return min(max(written.tokens), 500 if has_weights or node.has_gpu else 300)


def too_long_lines(written: Written, node: Node, has_weights: bool) -> int:
    """Count the training lines that need more time steps than the network has."""
    steps = wide_line(written, node) // PUBLISHED_PLACE if has_weights else line_size(written, node).width // PLACE
    return sum(count_ctc_steps(text) > steps for text in written.texts)


def _nearly_all(written: Written) -> tuple[float, float]:
    """(aspect ratio, time steps) that nearly all lines stay below."""
    aspects = [width / max(1, high) for width, high in written.sizes]
    return float(np.quantile(aspects, 0.95)), float(np.quantile([count_ctc_steps(text) for text in written.texts], 0.995))


def count_ctc_steps(text: str) -> int:
    """Count the time steps that CTC needs: one per character, and a blank between equal neighbours."""
    return len(text) + sum(one == other for one, other in pairwise(text))


def describe_duration(seconds: float) -> str:
    """Round an estimated time to words such as `about 5 minutes`."""
    minutes = seconds / 60
    if minutes < 1.5:
        return 'about a minute'
    if minutes < 90:
        return f'about {math.ceil(minutes / 5) * 5 if minutes > 20 else round(minutes)} minutes'
    return f'about {minutes / 60:.1f} hours'
