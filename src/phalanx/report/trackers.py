"""Experiment trackers: TensorBoard, VisualDL, or one of a plugin. Only the main rank has any."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from phalanx.system.errors import RequestError


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

    def unlogged(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the `values` of `step` that no earlier start logged, for trackers that cannot delete values."""
        return {name: value for name, value in values.items() if step > self.logged.get(name.partition('/')[0], 0)}


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


class TensorBoard:
    """Events for TensorBoard, in the folder `tensorboard` of the run."""

    def start(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import; only the main rank needs it

        self._writer = SummaryWriter(str(run.folder / 'tensorboard'), purge_step=run.step + 1, flush_secs=5)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self._writer.close()


class VisualDL:
    """Records for VisualDL, in the folder `visualdl` of the run. Needs the package visualdl."""

    def __init__(self) -> None:
        from visualdl import LogWriter

        self._open = LogWriter

    def start(self, run: Run) -> None:
        self._run, self._writer = run, self._open(str(run.folder / 'visualdl'))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in self._run.unlogged(step, values).items():
            self._writer.add_scalar(name, value, step)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self._writer.close()


TRACKERS: dict[str, Callable[..., Tracker]] = {'tensorboard': TensorBoard, 'visualdl': VisualDL}


def check_trackers(builders: Mapping[str, Callable[[], Tracker]]) -> None:
    """Build the trackers of a recipe, by name. Raises RequestError for the first that cannot be built, with the fix."""
    for name, build in builders.items():
        where = f'report.trackers: {name}'
        try:
            tracker = build()
        except ModuleNotFoundError as error:
            package = (error.name or '').partition('.')[0]
            raise RequestError(
                f'{where} needs the package {package}, which is not installed: pip install {package}, or leave it out'
            ) from None
        except Exception as error:  # code of others, which may raise anything
            raise RequestError(f'{where} cannot be built: {type(error).__name__}: {error}') from error
        if not isinstance(tracker, Tracker):
            raise RequestError(
                f'{where}: {type(tracker).__name__} needs the methods start(run), log(step, values), finish(summary)'
            )
