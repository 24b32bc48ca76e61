"""Sizes, batch, rate and length of a training that suits a data set and this node.

The constants come from the recipes that were trained here (docs/benchmarks.md): how many samples a network wants to see from
scratch, with which rate, and how small an object may be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from phalanx.curation.new.published import Start
from phalanx.curation.prepare.samples import Family
from phalanx.curation.prepare.targets import Written
from phalanx.system.cores import count_cores

# Samples to be seen in training: (on a CPU, on a GPU). From scratch, fewer teach little more than where objects mostly are.
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
EPOCHS = (5, 400)  # at least and at most
EVALUATIONS = 10  # in a run
EMA_WINDOWS = 20  # of which the average holds one: then the beginning is long forgotten
SHORT = 300  # steps; a run that is shorter is evaluated by its weights as they are
PLACE = 4  # columns of a line for each character that CRNN can read
SEEN = 32  # pixels, the shorter side that a small object should have on the network's input
WRITTEN = 16  # the same of a text, which has many others like it


@dataclass(frozen=True)
class Node:
    """What there is to train on."""

    device: str
    cores: int
    bf16: bool = False  # whether it computes faster so

    @property
    def has_gpu(self) -> bool:
        return self.device == 'cuda'

    def __str__(self) -> str:
        return torch.cuda.get_device_name() if self.has_gpu else f'{self.cores} CPU core{"s" * (self.cores > 1)}'


def this_node() -> Node:
    return Node('cuda', count_cores(), bf16=True) if torch.cuda.is_available() else Node('cpu', count_cores())


def may_be_faster_in_bf16(node: Node) -> bool:
    """Whether it is worth trying: other processors have no instructions for it."""
    return not node.has_gpu and 'AVX512' in torch.backends.cpu.get_cpu_capability()


@dataclass(frozen=True)
class Length:
    """How long a training takes, in all units."""

    batch: int
    epochs: int
    steps: int
    evaluate_epochs: int
    ema_decay: float | None

    @property
    def warmup_steps(self) -> int:
        return max(1, min(500, self.steps // 20))


def length_of(family: Family, samples: int, node: Node, seen: int | None = None) -> Length:
    """For so many training samples; `seen`: how many in all, where the time is limited."""
    batch = max(min(2, samples), min(BATCH[family][node.has_gpu], samples // 4))  # norms need more than one sample
    wanted = seen or WANTED[family][node.has_gpu]
    lowest, highest = EPOCHS if seen is None else (1, 100_000)
    epochs = min(highest, max(lowest, round(wanted / samples)))
    steps = max(1, samples // batch) * epochs
    decay = None if steps < SHORT else round(min(0.9998, 1 - EMA_WINDOWS / steps), 4)
    return Length(batch, epochs, steps, max(1, epochs // EVALUATIONS), decay)


def length_on(start: Start, samples: int, seen: int | None) -> Length:
    """Of training published weights on: as many samples as they need, or `seen`; more are all seen once."""
    batch = max(1, min(start.batch, samples))
    epochs = max(1, round((seen or start.samples) / samples))
    return Length(batch, epochs, max(1, samples // batch) * epochs, max(1, epochs // 2), None)


def multiple(value: float, of: int = 32) -> int:
    """The nearest multiple that is above 0."""
    return max(of, round(value / of) * of)


def long_side(sizes: Sequence[tuple[int, int]]) -> int:
    """The median of the longer sides."""
    return round(float(np.median([max(size) for size in sizes])))


def _side(written: Written, pixels: int, least: int, most: int) -> int:
    """A side of an input on which small boxes have so many pixels still, and no image is blown up much."""
    small = float(np.quantile(written.boxes, 0.1)) if written.boxes else 0.1
    return min(multiple(max(pixels / max(small, 1e-3), least)), multiple(long_side(written.sizes)), most)


def detection_side(written: Written, node: Node) -> int:
    """The side of the square that images are resized to."""
    return _side(written, SEEN, 192, 640 if node.has_gpu else 320)


def text_sides(written: Written, node: Node) -> tuple[int, int]:
    """(the longer side that pages are reduced to, the side of the parts that are trained on)."""
    long, crop = (1280, 640) if node.has_gpu else (640, 320)
    side = _side(written, WRITTEN, 320, long)
    return side, min(side, crop)


def mirrors(class_names: Sequence[str]) -> bool:
    """Whether a mirrored object is one of its class still: letters, digits and sides are none."""
    words = {word for name in class_names for word in name.lower().replace('_', ' ').replace('-', ' ').split()}
    single = sum(len(name) == 1 for name in class_names)
    cards = {'ace', 'king', 'queen', 'jack', 'nine', 'ten', 'one', 'two', 'three', 'four', 'five'}
    return not words & {'left', 'right'} and single * 2 <= len(class_names) and len(words & cards) < 3


def segmentation_sides(written: Written, node: Node) -> tuple[int, int]:
    """(the longer side that images are resized to, the side of the crops that are trained on)."""
    long = min(long_side(written.sizes), 1024 if node.has_gpu else 512)
    short = float(np.median([min(size) * long / max(size) for size in written.sizes]))
    crop = min(max(64, math.ceil(short / 32) * 32), 512 if node.has_gpu else 256)
    return long, crop


def class_weights(written: Written) -> list[float]:
    """1 / ln(1.1 + share of the pixels), as ENet has them (Paszke et al. 2016), so that an average pixel weighs 1."""
    counts = np.array([written.units[name] for name in written.class_names], np.float64)
    shares = counts / max(counts.sum(), 1)
    weights = 1 / np.log(1.1 + shares)
    return [round(float(weight), 2) for weight in weights / max((weights * shares).sum(), 1e-6)]


@dataclass(frozen=True)
class LineSize:
    """The input of a network that reads lines."""

    width: int
    keep_ratio: bool
    too_long: int  # training lines that have more characters than places


def line_size(written: Written, node: Node) -> LineSize:
    """Of lines 32 high: wide enough for the characters of nearly all, and for their shape where lines are longer than words."""
    wide, long = _nearly_all(written)
    keep = wide > 5  # single words are stretched: then each has all places for its letters
    width = min(multiple(max(32 * wide if keep else 0, PLACE * (long + 2), 96), 16), 640 if node.has_gpu else 480)
    return LineSize(width, keep, sum(places(text) > width // PLACE for text in written.texts))


def wide_line(written: Written, node: Node) -> int:
    """The width of lines 48 high, of which a published recogniser makes a place of every eight columns."""
    wide, long = _nearly_all(written)
    return min(max(320, multiple(48 * wide), multiple(8 * (long + 2))), 1280 if node.has_gpu else 640)


def _nearly_all(written: Written) -> tuple[float, float]:
    """(how many times their height, how many places) nearly all lines are long at most."""
    aspects = [width / max(1, high) for width, high in written.sizes]
    return float(np.quantile(aspects, 0.95)), float(np.quantile([places(text) for text in written.texts], 0.995))


def places(text: str) -> int:
    """How many places CTC needs: one for each character, and one between two equal ones."""
    return len(text) + sum(one == other for one, other in pairwise(text))


def rounded(seconds: float) -> str:
    """A time that is an estimate."""
    minutes = seconds / 60
    if minutes < 1.5:
        return 'about a minute'
    if minutes < 90:
        return f'about {math.ceil(minutes / 5) * 5 if minutes > 20 else math.ceil(minutes)} minutes'
    return f'about {minutes / 60:.1f} hours'
