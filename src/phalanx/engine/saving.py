"""The checkpoints of a run in progress: what goes into one, when it is on disk, and how a run goes back to one."""

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from phalanx.engine.ema import Ema
from phalanx.engine.optim.optimizers import load_state
from phalanx.engine.precision import Precision
from phalanx.engine.progress import Progress
from phalanx.parallel import dist
from phalanx.parallel.gradients import PowerSgd
from phalanx.report.report import Report
from phalanx.system.errors import RunError
from phalanx.weights.checkpoint import Checkpoints, LoadedCheckpoint, Saving


@dataclass
class Saver:
    """All that the next step depends on, and the folder that keeps it. Random numbers and the data stream need no state."""

    checkpoints: Checkpoints
    model: nn.Module
    optimizer: Optimizer
    precision: Precision
    ema: Ema | None
    compression: PowerSgd | None
    asynchronous: bool
    saving: Saving | None = None  # the checkpoint that is being written while training goes on

    def begin(self, progress: Progress, best: bool, report: Report) -> None:
        """Begins to write a checkpoint, on the main rank: it takes a copy, and training goes on while that is written.

        Unless the recipe has it wait, and with it all ranks, which wait in the next step. All ranks call this together.
        """
        state = self.state(progress)
        if dist.rank() == 0:
            self.end(progress, report)
            averaged = self.ema.weights() if self.ema and self.ema.is_settled else None
            self.saving = self.checkpoints.begin(progress.step, self.model.state_dict(), averaged, state, best)
            if not self.asynchronous:
                self.saving.settle()

    def look(self, progress: Progress, report: Report) -> None:
        """Reports a checkpoint that is written by now. Raises RunError when the run folder is gone."""
        if dist.rank() == 0 and not self.checkpoints.folder.is_dir():
            raise RunError(self.rescued(progress))
        if self.saving is not None and self.saving.is_over():
            self.end(progress, report)

    def end(self, progress: Progress, report: Report, is_last: bool = False) -> None:
        """Waits for the checkpoint that is being written, if there is one.

        A disk that is full costs this checkpoint, not the run; but when it is the last one, raises RunError.
        """
        saving, self.saving = self.saving, None
        if saving is None:
            return
        try:
            path, seconds = saving.wait()
            report.saved(saving.step, path, seconds)
        except OSError as error:
            if not self.checkpoints.folder.is_dir():
                raise RunError(self.rescued(progress)) from None
            report.warning(
                f'the checkpoint of step {saving.step} was not written '
                f'({error.strerror}: {error.filename or self.checkpoints.root}); the newest on disk is {self.newest()}'
            )
            if is_last:
                raise RunError(f'the last checkpoint, of step {saving.step}, could not be written: {error}') from None

    def newest(self) -> str:
        """The newest checkpoint on disk, in words."""
        kept = self.checkpoints.all()
        return str(kept[-1]) if kept else 'none'

    def rescued(self, progress: Progress) -> str:
        """What to say when the run folder is gone: nothing can be written there any more. A last checkpoint goes beside it."""
        gone = (
            f'the run folder {self.checkpoints.folder} was removed or moved while the run wrote to it, at step {progress.step}'
        )
        beside = self.checkpoints.folder.with_name(f'{self.checkpoints.folder.name}.rescued')
        if self.compression is not None:  # whose state all ranks would have to bring
            return gone
        try:
            beside.mkdir(parents=True)
            averaged = self.ema.weights() if self.ema and self.ema.is_settled else None
            Checkpoints(beside, keep=1).save(progress.step, self.model.state_dict(), averaged, self.state(progress), False)
        except OSError as error:
            return f'{gone}; a last checkpoint could not be written to {beside} either: {error.strerror}'
        return f'{gone}; its last checkpoint is in {beside}: the same command with --resume {beside} goes on from it'

    def state(self, progress: Progress) -> dict[str, Any]:
        """All that the next step depends on besides the weights: tensors and numbers.

        All ranks take part; the main rank has it.
        """
        return {
            **asdict(progress),
            'optimizer': self.optimizer.state_dict(),
            'optimizer_class': type(self.optimizer).__name__,
            'precision': self.precision.state(),
            'ema': self.ema.state() if self.ema else None,
            'compression': self.compression.state() if self.compression else None,
        }

    def restore(self, loaded: LoadedCheckpoint) -> None:
        """Takes the tensors of a checkpoint. Raises RunError when it is of another network or of a run with other parts."""
        own = type(self.optimizer).__name__
        if (saved := loaded.state.get('optimizer_class', own)) != own:
            raise RunError(
                f'{loaded.path} was saved by the optimizer {saved}, this recipe has {own}: set optimizer.name as it was, '
                f'or begin a new run from its weights, train.init_from={loaded.path}'
            )
        try:
            self.model.load_state_dict(loaded.model)
            load_state(self.optimizer, loaded.state['optimizer'])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise RunError(f'{loaded.path} does not fit this recipe: {error}') from None
        self.precision.restore(loaded.state['precision'])
        if self.ema is not None:
            if loaded.state['ema'] is None:
                raise RunError(f'{loaded.path} holds no averaged weights (EMA); set ema=null, or start a new run')
            self.ema.restore(loaded.state['ema'])
        if self.compression is not None:
            self.compression.restore(loaded.state['compression'])
