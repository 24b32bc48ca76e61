"""Checkpoints of a run in progress: their content, background writes, and restoring."""

import shutil
from collections.abc import Callable
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
from phalanx.system.errors import RunError, describe_error
from phalanx.weights.checkpoint import Checkpoints, LoadedCheckpoint, Saving

LINES, LONGEST = 10, 250  # of torch's message about a state that does not fit: it names all tensors


@dataclass
class Saver:
    """All state that the next step depends on, and its folder. Random numbers and the data stream need no state."""

    checkpoints: Checkpoints
    model: nn.Module
    optimizer: Optimizer
    precision: Precision
    ema: Ema | None
    compression: PowerSgd | None
    build_optimizer: Callable[..., Optimizer]
    asynchronous: bool
    saving: Saving | None = None  # checkpoint being written in the background
    in_steps: float = 0.0  # seconds spent in its steps

    def begin(self, progress: Progress, best: bool, report: Report) -> None:
        """Start to write a checkpoint on the main rank, from a copy, while training continues. Collective.

        With `asynchronous: false` the main rank waits, and all others wait for it in the next step.
        """
        # Collective, so on all ranks; only the main rank writes.
        state = self.state(progress)
        if dist.rank() == 0:
            # One write at a time: a slow disk slows training down instead of filling the memory with copies.
            self.finish(progress, report)
            averaged = self.ema.weights() if self.ema and self.ema.is_settled else None
            self.saving = self.checkpoints.begin(progress.step, self.model.state_dict(), averaged, state, best)
            self.in_steps = progress.training_seconds - progress.waiting_seconds
            if not self.asynchronous:
                self.saving.settle()

    def disk_warning(self) -> str | None:
        """Warning if the checkpoints that the run keeps need more disk than is free; else None."""
        weights = sum(tensor.nbytes for tensor in self.model.state_dict().values())
        # Adam's two moments; other optimizers have less. An EMA is saved as weights and as state.
        moments = 2 * sum(parameter.nbytes for parameter in self.model.parameters() if parameter.requires_grad)
        each = (weights * (3 if self.ema else 1) + moments) / 2**20
        count = self.checkpoints.keep + 2  # the best one, and the next one before an old one is removed
        free = shutil.disk_usage(self.checkpoints.folder).free / 2**20
        if count * each < free:
            return None
        return (
            f'up to {count} checkpoints of about {each:,.0f} MiB need {count * each:,.0f} MiB, the disk of '
            f'{self.checkpoints.folder} has {free:,.0f} MiB free: free some space, or reduce checkpoint.keep'
        )

    def poll(self, progress: Progress, report: Report) -> None:
        """Report a checkpoint whose write has finished. Raises RunError if the run folder is gone."""
        # On Linux an open file outlives its folder: without this check a run would train on for nothing.
        if dist.rank() == 0 and not self.checkpoints.folder.is_dir():
            raise RunError(self.rescue(progress))
        if self.saving is not None and self.saving.is_over():
            self.finish(progress, report)

    def finish(self, progress: Progress, report: Report, is_last: bool = False) -> None:
        """Wait for the checkpoint that is being written, if any.

        A full disk costs this checkpoint, not the run; for the last checkpoint, raises RunError.
        """
        saving, self.saving = self.saving, None
        if saving is None:
            return
        try:
            path, seconds = saving.wait()
            report.saved(saving.step, path, seconds, self.in_steps)
        except OSError as error:
            if not self.checkpoints.folder.is_dir():
                raise RunError(self.rescue(progress)) from None
            report.warning(
                f'the checkpoint of step {saving.step} was not written '
                f'({error.strerror}: {error.filename or self.checkpoints.root}); the newest on disk is {self.newest()}'
            )
            if is_last:
                why = describe_error(error)
                raise RunError(f'the last checkpoint, of step {saving.step}, could not be written: {why}') from None

    def newest(self) -> str:
        """Path of the newest checkpoint on disk, or 'none'."""
        paths = self.checkpoints.all()
        return str(paths[-1]) if paths else 'none'

    def rescue(self, progress: Progress) -> str:
        """Save a last checkpoint beside the run folder, which is gone; return the message for the user."""
        gone = (
            f'the run folder {self.checkpoints.folder} was removed or moved while the run wrote to it, at step {progress.step}'
        )
        beside = self.checkpoints.folder.with_name(f'{self.checkpoints.folder.name}.rescued')
        if self.compression is not None:  # gathering its state would need all ranks
            return gone
        try:
            beside.mkdir(parents=True)
            averaged = self.ema.weights() if self.ema and self.ema.is_settled else None
            Checkpoints(beside, keep=1).save(progress.step, self.model.state_dict(), averaged, self.state(progress), False)
        except OSError as error:
            return f'{gone}; a last checkpoint could not be written to {beside} either: {error.strerror}'
        return f'{gone}; its last checkpoint is in {beside}: to continue, repeat the command with --resume {beside}'

    def state(self, progress: Progress) -> dict[str, Any]:
        """State that the next step depends on besides the weights. Collective; complete on the main rank."""
        return {
            **asdict(progress),
            'optimizer': self.optimizer.state_dict(),
            'optimizer_class': type(self.optimizer).__name__,
            'precision': self.precision.state(),
            'ema': self.ema.state() if self.ema else None,
            'compression': self.compression.state() if self.compression else None,
        }

    def restore(self, loaded: LoadedCheckpoint) -> None:
        """Load the tensors of a checkpoint. Raises RunError if it belongs to another network or a run with other parts."""
        own = type(self.optimizer).__name__
        # Optimizers of another class may have state of the same form, and would load it without an error.
        if (saved := loaded.state.get('optimizer_class', own)) != own:
            raise RunError(
                f'{loaded.path} was saved by the optimizer {saved}, this recipe has {own}: set optimizer.name as it was, '
                f'or begin a new run from its weights, train.init_from={loaded.path}'
            )
        try:
            self.model.load_state_dict(loaded.model)
            load_state(self.optimizer, loaded.state['optimizer'], self.build_optimizer)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            lines = [line if len(line) <= LONGEST else f'{line[:LONGEST]} ...' for line in str(error).split('\n')]
            raise RunError(f'{loaded.path} does not match this recipe: ' + '\n'.join(lines[:LINES])) from None
        self.precision.restore(loaded.state['precision'])
        if self.ema is not None:
            if loaded.state['ema'] is None:
                raise RunError(f'{loaded.path} has no averaged weights (EMA); set ema=null, or start a new run')
            self.ema.restore(loaded.state['ema'])
        if self.compression is not None:
            self.compression.restore(loaded.state['compression'])
