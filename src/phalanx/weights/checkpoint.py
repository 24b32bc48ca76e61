"""Checkpoints: everything to go on with a run. One on disk is whole or is not there.

checkpoints/step_0000100/   model.safetensors     the weights in training
                            averaged.safetensors  the weights that are evaluated and exported, where the run averages them
                            state.pt              optimizer, loss scale, EMA, best metric: tensors and numbers only
                            manifest.json         format, step, size and sha256 of each file, its own checksum; written last
latest, best                links beside `checkpoints`, changed after the checkpoint is in place; on a disk without links,
                            text files with the path of the checkpoint

Training does not wait for the disk: `begin` takes a copy in host memory, and a thread writes it.
"""

import contextlib
import errno
import hashlib
import io
import json
import pickle
import shutil
import struct
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from phalanx.system.disk import flush, hash_file, remove_own
from phalanx.system.errors import CheckpointError, first_line

LONGEST_NAME = 255  # bytes, of a file in Linux
MANIFEST = 'manifest.json'
POINTERS = ('latest', 'best')
WITHOUT_LINKS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # of SMB, exFAT, object mounts
FORMAT = 2  # what is written; 1 had no checksum of the manifest
READABLE = (1, 2)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNREADABLE = (  # what the readers of safetensors and torch raise for bytes that are none of theirs
    *(safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError, MemoryError),
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, struct.error),
)


class FormatError(CheckpointError):
    """A checkpoint of a format that this version does not read. It is not damaged, so a run must not pass it over."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint in memory."""

    path: Path
    step: int
    model: dict[str, Tensor]
    averaged: dict[str, Tensor] | None
    state: dict[str, Any]


@dataclass(frozen=True)
class Saving:
    """A checkpoint on its way to disk."""

    step: int
    _written: Future[tuple[Path, float]]

    def is_over(self) -> bool:
        return self._written.done()

    def settle(self) -> None:
        """Returns once it is over; `wait` returns what came of it."""
        self._written.exception()

    def wait(self) -> tuple[Path, float]:
        """The folder of the checkpoint and the seconds its writing took. Raises OSError when it could not be written."""
        return self._written.result()


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._writer = ThreadPoolExecutor(1, 'checkpoint')  # the interpreter does not end before what it was given is done

    @property
    def root(self) -> Path:
        return self.folder / 'checkpoints'

    def begin(
        self,
        step: int,
        model: Mapping[str, Tensor],
        averaged: Mapping[str, Tensor] | None,
        state: Mapping[str, Any],
        best: bool,
    ) -> Saving:
        """Copies everything to host memory and begins to write the copy: the originals may change as soon as this returns.

        One at a time: whoever begins a second one waits for the first before, or the copies pile up.
        """
        model, averaged, state = _copy_to_host(model), _copy_to_host(averaged), _copy_to_host(state)

        def write() -> tuple[Path, float]:
            begun = time.perf_counter()
            return self.save(step, model, averaged, state, best), time.perf_counter() - begun

        return Saving(step, self._writer.submit(write))

    def save(
        self,
        step: int,
        model: Mapping[str, Tensor],
        averaged: Mapping[str, Tensor] | None,
        state: Mapping[str, Any],
        best: bool,
    ) -> Path:
        """The folder of the new checkpoint. Raises OSError (a full disk, say) with nothing half-written left behind.

        The order is important: 1. the files and their manifest, in a folder aside, flushed to disk; 2. the folder gets its
        name; 3. `latest` and `best` point to it; 4. old ones go.
        """
        final, aside, replaced = (self.root / f'{prefix}{_name(step)}' for prefix in ('', '.new_', '.old_'))
        if not self.folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, 'the run folder is gone', str(self.folder))
        self.root.mkdir(exist_ok=True)
        self.remove_leftovers()
        parts: dict[str, bytes] = {}
        try:
            aside.mkdir()
            parts |= {'model.safetensors': safetensors.torch.save(_contiguous(model)), 'state.pt': _serialise(state)}
            if averaged is not None:
                parts['averaged.safetensors'] = safetensors.torch.save(_contiguous(averaged))
            files = {name: {'bytes': len(part), 'sha256': hashlib.sha256(part).hexdigest()} for name, part in parts.items()}
            parts[MANIFEST] = _manifest(step, files)
            for name, part in parts.items():
                (aside / name).write_bytes(part)
                flush(aside / name)
            flush(aside)
            if final.exists():  # the same step again, after a resume from an earlier one
                final.rename(replaced)
            aside.rename(final)
            flush(self.root)
        except BaseException as error:
            self.remove_leftovers()
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                sizes = sum(map(len, parts.values())) / 2**20, shutil.disk_usage(self.folder).free / 2**20
                room = '{}; the checkpoint takes {:,.1f} MiB, the disk has {:,.1f} MiB left'.format(error.strerror, *sizes)
                raise OSError(error.errno, room, str(self.root)) from None
            raise
        self._point('latest', final)
        if best:
            self._point('best', final)
        flush(self.folder)
        self._prune()
        self.remove_leftovers()
        return final

    def remove_leftovers(self) -> None:
        """Removes what a process left that died while it wrote. Not to be called while another process writes here.

        A checkpoint that was moved away for another of its step, which then did not come, takes its place again.
        """
        for path in self.root.glob('.old_step_*'):
            if not (final := path.with_name(path.name.removeprefix('.old_'))).exists():
                path.rename(final)
        for path in (*self.root.glob('.new_step_*'), *self.root.glob('.old_step_*')):
            remove_own(path)  # nobody else names folders so
        for path in (self.folder / '.latest.new', self.folder / '.best.new'):
            remove_own(path)

    def newest(self) -> tuple[LoadedCheckpoint | None, list[str]]:
        """The newest whole checkpoint, and what is wrong with each newer one that was passed over. Raises FormatError."""
        damaged: list[str] = []
        for path in reversed(self.all()):
            try:
                return load(path), damaged
            except FormatError:
                raise
            except CheckpointError as error:
                damaged.append(str(error))
        return None, damaged

    def all(self) -> list[Path]:
        """The checkpoints in place, oldest first; whether they are whole shows in loading."""
        return sorted(self.root.glob('step_*'), key=lambda path: path.name) if self.root.is_dir() else []

    def abandon(self, since: LoadedCheckpoint) -> list[Path]:
        """Renames the checkpoints after `since`, for a run that goes back to it: a later start must not find them.

        Returns their new names. `latest` and `best` point to what was the latest and the best then, or are gone.
        """
        renamed = []
        for path in self.all():
            if path.name > _name(since.step):
                new = next(new for n in count(1) if not (new := path.with_name(f'abandoned_{path.name}.{n}')).exists())
                renamed.append(path.rename(new))
        for name, step in (('latest', since.step), ('best', since.state['best_step'])) if renamed else ():
            if (target := self.root / _name(step)).is_dir():
                self._point(name, target)
            else:
                remove_own(self.folder / name)  # the pointer
        return renamed

    def _point(self, name: str, target: Path) -> None:
        aside, inside = self.folder / f'.{name}.new', target.relative_to(self.folder)
        remove_own(aside)
        try:
            aside.symlink_to(inside)
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            aside.write_text(f'{inside.as_posix()}\n')
            flush(aside)
        aside.replace(self.folder / name)

    def _prune(self) -> None:
        kept = {resolve_pointer(self.folder / name) for name in POINTERS}
        for path in self.all()[: -self.keep]:
            if path.resolve() not in kept and (path / MANIFEST).is_file():  # a checkpoint, and not what a person put there
                remove_own(path)


def _name(step: int) -> str:
    return f'step_{step:07d}'


def load(path: Path) -> LoadedCheckpoint:
    """The checkpoint at `path`, after its files were checked against the manifest; loading runs no code from them.

    Raises CheckpointError naming the file that is missing, cut short or changed, and FormatError.
    """
    step, files = _read_manifest(path / MANIFEST)
    for name, (size, digest) in files.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f'{file}: is missing')
        if file.stat().st_size != size:
            raise CheckpointError(f'{file}: has {file.stat().st_size} bytes, {size} were written; it was cut short')
        if hash_file(file) != digest:
            raise CheckpointError(f'{file}: its bytes are not those that were written (sha256 differs)')
    averaged = path / 'averaged.safetensors'
    try:
        return LoadedCheckpoint(
            path,
            step,
            safetensors.torch.load_file(path / 'model.safetensors'),
            safetensors.torch.load_file(averaged) if averaged.name in files else None,
            torch.load(path / 'state.pt', weights_only=True, map_location='cpu'),
        )
    except UNREADABLE as error:
        raise CheckpointError(f'{path}: cannot be read: {type(error).__name__}: {first_line(error)}') from None


def weights_at(path: Path, *, raw: bool = False) -> dict[str, Tensor]:
    """The weights to use from a run folder (its best, else its latest) or a checkpoint folder.

    `raw`: of a checkpoint those as trained, even where it has their EMA.
    Raises CheckpointError when there are none or they are damaged.
    """
    loaded = load(checkpoint_folder(path))
    return loaded.model if raw or loaded.averaged is None else loaded.averaged


def checkpoint_folder(path: Path) -> Path:
    """The checkpoint folder that stands for `path`: itself, or the best, else the latest, of a run folder.

    Raises CheckpointError when there is none.
    """
    for place in (path, path / 'best', path / 'latest'):
        whole = resolve_pointer(place)
        if not whole.exists():  # a kill came while another checkpoint of its step took its place
            whole = whole.with_name(f'.old_{whole.name}')
        if (whole / MANIFEST).is_file():
            return whole
    raise CheckpointError(
        f'{path}: holds no weights (neither a run folder with a checkpoint, nor a checkpoint, nor a .safetensors file)'
    )


def resolve_pointer(place: Path) -> Path:
    """The folder that `latest` or `best` of a run means, be it a link or a text file; any other path, resolved."""
    if is_pointer(place):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (place.parent / place.read_text().strip()).resolve()
    return place.resolve()


def is_pointer(place: Path) -> bool:
    """Whether `place` is a text file that stands for a checkpoint, as `latest` and `best` are where there are no links."""
    return place.name in POINTERS and place.is_file() and place.stat().st_size <= LONGEST_NAME


def step_of(path: Path) -> int:
    """The step of the checkpoint that stands for `path`, see `checkpoint_folder`. Raises CheckpointError when there is none."""
    return _read_manifest(checkpoint_folder(path) / MANIFEST)[0]


def describe_checkpoint(path: Path, *, raw: bool = False) -> str:
    """Which weights of a run folder are used: `step 200 (best), EMA`. Raises CheckpointError when there are none."""
    whole = checkpoint_folder(path)
    why = next((f' ({name})' for name in ('best', 'latest') if resolve_pointer(path / name) == whole), '')
    averaged = not raw and (whole / 'averaged.safetensors').is_file()
    return f'step {step_of(whole)}{why}, {"EMA" if averaged else "as trained"}'


def _manifest(step: int, files: Mapping[str, Any]) -> bytes:
    """The manifest as it is written: last in it a checksum, `seal`, without which a changed step would not be noticed."""
    facts = {'format': FORMAT, 'step': step, 'files': files}
    return json.dumps({**facts, 'seal': _checksum(facts)}, indent=1).encode()


def _read_manifest(path: Path) -> tuple[int, dict[str, tuple[int, str]]]:
    """The step of a checkpoint, and size and sha256 of each of its files. Raises CheckpointError, and FormatError."""
    try:
        facts = dict(json.loads(path.read_text()))
        if isinstance(number := facts.get('format'), int) and number not in READABLE:
            other = 'a newer version of Phalanx wrote it: update Phalanx here' if number > FORMAT else 'it is none of Phalanx'
            raise FormatError(f'{path.parent}: is of format {number}, and this version reads up to {FORMAT}; {other}')
        checksum = facts.pop('seal', None)
        if checksum != (_checksum(facts) if number != 1 else None):
            raise CheckpointError(f'{path}: its bytes are not those that were written (the checksum differs)')
        files = {Path(name).name: (int(file['bytes']), str(file['sha256'])) for name, file in facts['files'].items()}
        if any(len(name.encode()) > LONGEST_NAME for name in files):
            raise ValueError('it names a file as no file can be named')
        return int(facts['step']), files
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f'{path}: cannot be read ({error}); the checkpoint is not whole') from None


def _checksum(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _copy_to_host(value: Any) -> Any:
    """`value` with all tensors in it copied to host memory, as they are now."""
    if isinstance(value, Tensor):
        return value.detach().to('cpu', copy=True)
    if isinstance(value, Mapping):
        return {key: _copy_to_host(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy_to_host(part) for part in value)
    return value


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _serialise(state: Mapping[str, Any]) -> bytes:
    """`state` as torch saves it. By way of memory: its own writer tells a full disk from nothing else."""
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getvalue()
