"""Experiment trackers: TensorBoard, VisualDL, MLflow, Weights & Biases, or one of a plugin."""

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.report.delivery import MLflow, WandB
from phalanx.report.tracker import Run as Run
from phalanx.report.tracker import Tracker as Tracker
from phalanx.system.errors import RequestError


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


TRACKERS: dict[str, Callable[..., Tracker]] = {
    'tensorboard': TensorBoard,
    'visualdl': VisualDL,
    MLflow.name: MLflow,
    WandB.name: WandB,
}


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
