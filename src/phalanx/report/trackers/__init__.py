"""Experiment trackers: files of the run folder, clients of servers, or one of a plugin."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.report.trackers.clearml import ClearML
from phalanx.report.trackers.delivery import Delivery
from phalanx.report.trackers.interface import Picture as Picture
from phalanx.report.trackers.interface import PictureTracker as PictureTracker
from phalanx.report.trackers.interface import PostponedError as PostponedError
from phalanx.report.trackers.interface import Run as Run
from phalanx.report.trackers.interface import Tracker as Tracker
from phalanx.report.trackers.local import TensorBoard, VisualDL
from phalanx.report.trackers.mlflow import MLflow
from phalanx.report.trackers.swanlab import SwanLab
from phalanx.report.trackers.trackio import Trackio
from phalanx.report.trackers.wandb import WandB
from phalanx.system.errors import RequestError

TRACKERS: dict[str, Callable[..., Tracker]] = {
    'tensorboard': TensorBoard,
    'visualdl': VisualDL,
    **{tracker.name: tracker for tracker in (MLflow, WandB, ClearML, Trackio, SwanLab)},
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


def send_exports(
    builders: Mapping[str, Callable[[], Tracker]], run: Run, summary: Mapping[str, Any], files: Sequence[Path]
) -> dict[str, str]:
    """Send exported files to the trackers that keep the weights of the run; return the failures, by name."""
    failed = {}
    for name, build in builders.items():
        try:
            if isinstance(tracker := build(), Delivery):
                tracker.send_exports(run, summary, files)
        except Exception as error:  # noqa: BLE001 - of a client, which may raise anything
            failed[name] = f'{type(error).__name__}: {error}'
    return failed
