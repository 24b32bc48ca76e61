"""Trackers that are files of the run folder: TensorBoard and VisualDL."""

from collections.abc import Mapping
from typing import Any

from phalanx.report.trackers.interface import Picture, Run


class TensorBoard:
    """Events for TensorBoard, in the folder `tensorboard` of the run."""

    def start(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import; only the main rank needs it

        self._writer = SummaryWriter(str(run.folder / 'tensorboard'), purge_step=run.step + 1, flush_secs=5)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def show(self, step: int, pictures: Mapping[str, Picture]) -> None:
        for name, picture in pictures.items():
            self._writer.add_image(name, picture.image, step, dataformats='HWC')

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

    def show(self, step: int, pictures: Mapping[str, Picture]) -> None:
        for name, picture in pictures.items():
            if step > self._run.logged.get('eval', 0):
                self._writer.add_image(name, picture.image, step)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self._writer.close()
