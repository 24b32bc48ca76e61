"""Which network would explain the speed-ups that the Paddle projects published, by the same model that makes our plans.

Their tables say hours on one and on several nodes of eight devices, and nothing of the network. Two explanations are tried
for each, one at a time: a network card so slow that gradients arrive late, and a latency so long that the exchanges of the
synchronised norms take their time. What needs an absurd value has another cause: data, mostly, or ranks that wait for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.bench.network import FREE, Link, Network
from phalanx.bench.plan import plan
from phalanx.bench.profile import Message, Profile
from phalanx.bench.show import as_text

MESSAGES = 200  # into how many parts the gradients are cut
FORWARD = 1 / 3  # share of a step; the backward pass takes the rest
BN_BYTES = 1024  # of a synchronised norm: sums of a few hundred channels, so little that only latency counts


@dataclass(frozen=True)
class PublishedRun:
    """A row of their tables. `steps`: of the run on one node, from the length and the batch that the recipe names."""

    model: str
    nodes: int  # of eight devices, against one
    hours_on_one: float
    hours: float
    printed: float  # the speed-up beside the hours
    steps: int
    parameters: float  # millions
    norms: int  # synchronised ones; the originals of text and table recognition do not synchronise

    @property
    def speed_up(self) -> float:
        """From the hours: two of the printed ones do not follow from them."""
        return self.hours_on_one / self.hours

    @property
    def step_seconds(self) -> float:
        return self.hours_on_one * 3600 / self.steps


# PaddleSeg docs/train/distributed_train.md (80,000 steps: it says that 26,700 on three nodes are as long);
# PaddleDetection docs/tutorials/DistributedTraining and the Objects365 page of PP-YOLOE (64 of 117,266 or 1,742,292 images a
# step); PaddleOCR doc/doc_en/distributed_training_en.md (2048 of 260,000 lines, 384 of 500,777 tables).
COCO, OBJECTS365 = 300 * 117_266 // 64, 60 * 1_742_292 // 64
PUBLISHED = (
    PublishedRun('OCRNet-HRNetW18, Cityscapes', 3, 8.9, 5.33, 1.88, 80_000, 12.08, 314),
    PublishedRun('SegFormer-B0, Cityscapes', 3, 5.61, 2.6, 2.15, 80_000, 3.72, 1),
    PublishedRun('PP-LiteSeg-T STDC1, Cityscapes', 4, 7.58, 2.5, 3.03, 80_000, 8.14, 48),
    PublishedRun('PP-YOLOE-s, COCO', 4, 39, 13, 3.0, COCO, 8.08, 78),
    PublishedRun('PP-YOLOE-s, Objects365', 3, 301, 162, 1.85, OBJECTS365, 9.81, 78),
    PublishedRun('PP-YOLOE-m, Objects365', 4, 337, 112, 3.0, OBJECTS365, 26.72, 111),
    PublishedRun('PP-YOLOE-l, Objects365', 3, 401, 178, 2.25, OBJECTS365, 57.53, 144),
    PublishedRun('PP-YOLOE-x, Objects365', 4, 464, 125, 3.4, OBJECTS365, 106.64, 177),
    PublishedRun('CRNN, 260,000 Chinese lines', 2, 60, 40, 1.5, 500 * 260_000 // 2048, 1.08, 0),
    PublishedRun('SLANet, PubTabNet', 3, 49.8, 19.75, 2.52, 100 * 500_777 // 384, 1.88, 0),
)


@dataclass(frozen=True)
class Explained:
    """The one assumption about the network that makes the plan say what was published."""

    run: PublishedRun
    bandwidth: float  # bytes a second of a node's card, when nothing else is slow
    latency: float | None  # seconds between nodes, when nothing else is slow; None where no norm is synchronised


def explain(runs: Sequence[PublishedRun] = PUBLISHED) -> list[Explained]:
    return [
        Explained(
            run,
            _where(run, norm_sync='off', network=lambda value: Link(value, 0), between=(1e5, 1e12)),
            _where(run, norm_sync='global', network=lambda value: Link(math.inf, 1 / value), between=(1e0, 1e9)) ** -1
            if run.norms
            else None,
        )
        for run in runs
    ]


def _where(run: PublishedRun, *, norm_sync: str, network: Callable[[float], Link], between: tuple[float, float]) -> float:
    """The value, between two, at which the plan gives the published speed-up, which grows with it; by halving."""
    low, high = (math.log(value) for value in between)
    profile = assumed(run, norm_sync)
    for _ in range(60):
        middle = (low + high) / 2
        joined = Network(network(math.exp(middle)), FREE.within)
        (predicted,) = plan(profile, [run.nodes], 1, joined)  # a node as one rank: its own eight are in its measured step
        low, high = (middle, high) if predicted.speed_up < run.speed_up else (low, middle)
    return math.exp(low)


def assumed(run: PublishedRun, norm_sync: str) -> Profile:
    """A step as it must have been on one node, with gradients and exchanges evenly spread over the passes."""
    forward, backward = FORWARD * run.step_seconds, (1 - FORWARD) * run.step_seconds
    size = round(4e6 * run.parameters / MESSAGES)

    def spread(count: int, size: int, seconds: float) -> tuple[Message, ...]:
        return tuple(Message(seconds * (number + 1) / count, size) for number in range(count))

    norms = run.norms if norm_sync == 'global' else 0
    return Profile(
        recipe=run.model,
        device='as published',
        samples=1,
        run_samples=run.steps,
        phases={'forward': forward, 'backward': backward},
        norm_sync=norm_sync,
        forward=spread(norms, BN_BYTES, forward),
        losses=(),
        backward=spread(norms, BN_BYTES, backward),
        gradients=spread(MESSAGES, size, backward),
        loader_rate=math.inf,
        workers=1,
    )


def record(explained: Sequence[Explained]) -> dict[str, Any]:
    return {
        'published': [
            {**asdict(each.run), 'speed_up': each.run.speed_up, 'bandwidth': each.bandwidth, 'latency_s': each.latency}
            for each in explained
        ]
    }


def as_table(explained: Sequence[Explained]) -> str:
    rows = [
        {
            'published run': each.run.model,
            'nodes': f'1 -> {each.run.nodes}',
            'hours': f'{each.run.hours_on_one:g} -> {each.run.hours:g}',
            'printed': f'{each.run.printed:.2f}',
            'speed-up': f'{each.run.speed_up:.2f}',
            'step on one': f'{1000 * each.run.step_seconds:.0f} ms',
            'gradients': f'{4 * each.run.parameters:.1f} MB',
            'bandwidth alone': f'{8 * each.bandwidth / 1e9:.2f} Gbit/s',
            'latency alone': '-' if each.latency is None else f'{1e6 * each.latency:,.0f} us',
        }
        for each in explained
    ]
    return (
        f'{as_text(rows)}\nspeed-up: from the hours. bandwidth alone: of a card of each node, if gradients late were all that '
        'costs time.\nlatency alone: from node to node, if the exchanges of synchronised norms were.'
    )
