"""Interface of experiment trackers. Only the main rank has any."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from phalanx.data.samples import Image


class PostponedError(Exception):
    """Values are not with the tracker yet, but will be: nothing is lost."""


class Run(NamedTuple):
    """The run that a tracker follows."""

    name: str
    folder: Path
    """The run folder: a tracker keeps its files there, such as the id under which a resumed run continues."""
    config: Mapping[str, Any]
    """The resolved recipe, nested as in its YAML file."""
    step: int
    """The step that training continues from, 0 at the beginning. What an earlier start logged of later steps is void."""
    logged: Mapping[str, int]
    """Last step for which an earlier start logged values, by group (`train`, `eval`)."""

    facts: Mapping[str, str] = {}
    """The banner of the run: model, data, global batch, precision, versions, commit of the code, ..."""

    def unlogged(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the `values` of `step` that no earlier start logged, for trackers that cannot delete values."""
        return {name: value for name, value in values.items() if step > self.logged.get(name.partition('/')[0], 0)}


class Picture(NamedTuple):
    """Picture of an evaluation: samples with truth and prediction, a confusion matrix, or curves."""

    caption: str
    image: Image  # [H, W, 3] RGB


@runtime_checkable
class Tracker(Protocol):
    """Experiment tracker. It is built before the run and imports its package then, so a missing one is reported before the
    start.

    An exception in a method is reported once and does not end the run; after one in `start` the tracker is not called again.
    """

    def start(self, run: Run, /) -> None:
        """Begins, or continues after `run.step`."""

    def log(self, step: int, values: Mapping[str, float], /) -> None:
        """Takes the values of one log line (`train/loss`, `train/lr`, ...) or evaluation (`eval/mean_iou`, ...)."""

    def finish(self, summary: Mapping[str, Any] | None, /) -> None:
        """Ends: `summary` is the content of summary.json, None when the run stopped before its end."""


@runtime_checkable
class PictureTracker(Tracker, Protocol):
    """Experiment tracker that takes the pictures of evaluations, too."""

    def show(self, step: int, pictures: Mapping[str, Picture], /) -> None:
        """Takes the pictures of the evaluation after `step` by name (`samples/0`, `confusion matrix`), before its values."""
