"""Assigners of anchors to true boxes. No gradient flows through them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss.assign import Assigned, Truths, assign_atss, assign_task_aligned
from phalanx.parallel.step import WholeStep


class Assigner(Protocol):
    """Assign anchors to the true boxes of a batch; `whole` has the epoch and the length of the run."""

    def __call__(self, raw: Raw, truths: Truths, whole: WholeStep, /) -> Assigned: ...


@dataclass(frozen=True, kw_only=True)
class Atss:
    """ATSS: the nearest anchors whose IoU is above mean plus deviation; see `assign.assign_atss`.

    Raises ValueError for a `top_k` below 1 and an `anchor_size` not above 0.
    """

    top_k: int = 9
    """Candidates per box and level."""
    anchor_size: float = 5.0
    """Sides of the anchor boxes in strides."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, 'top_k')
        if self.anchor_size <= 0:
            raise ValueError(f'anchor_size must be above 0 strides, got {self.anchor_size}')

    def __call__(self, raw: Raw, truths: Truths, whole: WholeStep) -> Assigned:
        return assign_atss(truths, raw.boxes, raw, top_k=self.top_k, anchor_size=self.anchor_size)


@dataclass(frozen=True, kw_only=True)
class TaskAligned:
    """TAL of TOOD: anchors with the best-aligned predictions, of the teacher in a distillation.

    See `assign.assign_task_aligned`. Raises ValueError for a `top_k` below 1.
    """

    top_k: int = 13
    """Candidates per box, over all levels."""
    alpha: float = 1.0
    """Exponent of the probability of the class."""
    beta: float = 6.0
    """Exponent of the IoU."""
    center_radius: float | None = None
    """Distance in strides from the centre of a box within which anchors are candidates too (PP-YOLOE-SOD)."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, 'top_k')

    def __call__(self, raw: Raw, truths: Truths, whole: WholeStep) -> Assigned:
        guide = raw.teacher or raw
        alpha, beta, radius = self.alpha, self.beta, self.center_radius
        return assign_task_aligned(truths, guide.boxes, guide, top_k=self.top_k, alpha=alpha, beta=beta, center_radius=radius)


@dataclass(frozen=True, kw_only=True)
class AtssThenTaskAligned:
    """The schedule of PP-YOLOE: ATSS at first, then TAL. Raises ValueError for options that either rejects."""

    static_epochs: int | None = None
    """Epochs of ATSS; null: a third of the run. PP-YOLOE: 100 of 300, PP-YOLOE+: 30 of 80."""
    static_top_k: int = 9
    """ATSS: candidates per box and level."""
    anchor_size: float = 5.0
    """ATSS: sides of the anchor boxes in strides."""
    top_k: int = 13
    """TAL: candidates per box, over all levels."""
    alpha: float = 1.0
    """TAL: exponent of the probability of the class."""
    beta: float = 6.0
    """TAL: exponent of the IoU."""
    center_radius: float | None = None
    """TAL: distance in strides from the centre of a box within which anchors are candidates too (PP-YOLOE-SOD)."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, 'static_top_k', 'top_k')
        self.parts()

    def parts(self) -> tuple[Assigner, Assigner]:
        radius = self.center_radius
        return (
            Atss(top_k=self.static_top_k, anchor_size=self.anchor_size),
            TaskAligned(top_k=self.top_k, alpha=self.alpha, beta=self.beta, center_radius=radius),
        )

    def __call__(self, raw: Raw, truths: Truths, whole: WholeStep) -> Assigned:
        static, dynamic = self.parts()
        static_epochs = whole.epochs / 3 if self.static_epochs is None else self.static_epochs
        return (static if whole.epoch < static_epochs else dynamic)(raw, truths, whole)


ASSIGNERS: dict[str, Callable[..., Assigner]] = {
    'atss': Atss,
    'task_aligned': TaskAligned,
    'atss_then_task_aligned': AtssThenTaskAligned,
}


def check_at_least(options: object, least: int, *names: str) -> None:
    """Raises ValueError if one of the named options is below `least`."""
    for name in names:
        if getattr(options, name) < least:
            raise ValueError(f'{name} must be at least {least}, got {getattr(options, name)}')
