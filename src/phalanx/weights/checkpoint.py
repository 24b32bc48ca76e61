"""Checkpoints: all that a run needs to resume. A checkpoint on disk is complete or absent.

checkpoints/step_0000100/   model.safetensors     weights as trained
                            averaged.safetensors  their EMA, which is evaluated and exported, if the run has one
                            state.pt              optimizer, loss scale, EMA, best metric: tensors and numbers only
                            manifest.json         format, step, size and sha256 of each file, its own checksum; written last
latest, best                links beside `checkpoints`, changed after the checkpoint is in place; on a disk without links,
                            text files with the path of the checkpoint

Training does not wait for the disk: `begin` copies everything to host memory, and a thread writes that copy.
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
from collections.abc import Container, Iterator, Mapping
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
MANIFEST, MODEL, AVERAGED = 'manifest.json', 'model.safetensors', 'averaged.safetensors'
POINTERS = ('latest', 'best')
WITHOUT_LINKS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # of SMB, exFAT, object mounts
FORMAT = 2  # of new checkpoints; 1 had no checksum of the manifest
READABLE = (1, 2)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# For folders of torch.distributed.checkpoint.
JOIN = '`python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE`'
UNREADABLE = (  # exceptions of safetensors and torch for damaged or foreign bytes
    *(safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError, MemoryError),
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, struct.error),
)


class FormatError(CheckpointError):
    """A checkpoint in a format that this version cannot read. It is not damaged, so a run must not skip it."""


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
        """Wait until the checkpoint is written, or has failed; `wait` returns the result."""
        self._written.exception()

    def wait(self) -> tuple[Path, float]:
        """Folder of the checkpoint, and the seconds it took to write. Raises OSError if it could not be written."""
        return self._written.result()


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._writer = ThreadPoolExecutor(1, 'checkpoint')  # the interpreter waits for its work at exit

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
        """Copy everything to host memory and begin to write the copy: the originals may change once this returns.

        One at a time: the caller waits for a checkpoint before it begins another; otherwise copies would pile up.
        """
        # The only part that training waits for.
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
        """Write a checkpoint and return its folder. Raises OSError, for example for a full disk, leaving no partial files.

        The order matters, since a kill may come at any point: 1. the files and their manifest, in a temporary folder,
        flushed to disk; 2. the folder gets its name; 3. `latest` and `best` point to it; 4. old checkpoints are removed.
        """
        # `aside` is the new checkpoint until it is complete, `replaced` an old one of the same step until the new one is in
        # place.
        final, aside, replaced = (self.root / f'{prefix}{_name(step)}' for prefix in ('', '.new_', '.old_'))
        if not self.folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, 'the run folder is gone', str(self.folder))
        self.root.mkdir(exist_ok=True)
        self.remove_leftovers()
        parts: dict[str, bytes] = {}
        try:
            # 1. Serialised in memory first, so that sizes and checksums are those of the bytes that are written.
            aside.mkdir()
            parts |= {MODEL: safetensors.torch.save(_contiguous(model)), 'state.pt': _serialise(state)}
            if averaged is not None:
                parts[AVERAGED] = safetensors.torch.save(_contiguous(averaged))
            files = {name: {'bytes': len(part), 'sha256': hashlib.sha256(part).hexdigest()} for name, part in parts.items()}
            parts[MANIFEST] = _manifest(step, files)
            for name, part in parts.items():
                (aside / name).write_bytes(part)
                flush(aside / name)
            # 2. The rename publishes the checkpoint; it is atomic, and durable once the folder is flushed.
            flush(aside)
            if final.exists():  # the same step again, after a resume from an earlier one
                final.rename(replaced)
            aside.rename(final)
            flush(self.root)
        except BaseException as error:
            self.remove_leftovers()
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                sizes = sum(map(len, parts.values())) / 2**20, shutil.disk_usage(self.folder).free / 2**20
                room = '{}; the checkpoint takes {:,.1f} MiB, the disk has {:,.1f} MiB free'.format(error.strerror, *sizes)
                raise OSError(error.errno, room, str(self.root)) from None
            raise
        # 3. and 4.: pointers first, so that they never point to a removed checkpoint.
        self._point('latest', final)
        if best:
            self._point('best', final)
        flush(self.folder)
        self._prune()
        self.remove_leftovers()
        return final

    def remove_leftovers(self) -> None:
        """Remove the files of a process that died while writing. Must not run while another process writes here.

        A checkpoint that was moved aside for a new one of its step, which was not completed, is moved back.
        """
        for path in self.root.glob('.old_step_*'):
            if not (final := path.with_name(path.name.removeprefix('.old_'))).exists():
                path.rename(final)
        for path in (*self.root.glob('.new_step_*'), *self.root.glob('.old_step_*')):
            remove_own(path)  # only Phalanx uses such names
        for path in (self.folder / '.latest.new', self.folder / '.best.new'):
            remove_own(path)

    def newest(self) -> tuple[LoadedCheckpoint | None, list[str]]:
        """Load the newest complete checkpoint; also return the problems of newer, damaged ones. Raises FormatError."""
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
        """Folders of all checkpoints, oldest first. Damage shows only in loading."""
        # Names of seven digits sort like numbers.
        return sorted(self.root.glob('step_*'), key=lambda path: path.name) if self.root.is_dir() else []

    def has_steps(self) -> bool:
        """True if a step was made before one of the checkpoints: that of step 0 holds initial weights."""
        return any(path.name != _name(0) for path in self.all())

    def abandon(self, since: LoadedCheckpoint) -> list[Path]:
        """Rename the checkpoints after `since`, for a run that goes back to it, so that no later start continues from them.

        Returns their new names. `latest` and `best` then point to the checkpoints of that time, or are removed.
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
        # A new link under another name, then a rename: the pointer is never absent.
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
        protected = {resolve_pointer(self.folder / name) for name in POINTERS}
        for path in self.all()[: -self.keep]:
            # Only checkpoints: never anything that a user put into the folder.
            if path.resolve() not in protected and (path / MANIFEST).is_file():
                remove_own(path)


def _name(step: int) -> str:
    return f'step_{step:07d}'


def load(path: Path) -> LoadedCheckpoint:
    """Load the checkpoint at `path`, after checking its files against the manifest. Executes no code from it.

    Raises CheckpointError, naming the file that is missing, truncated or changed, and FormatError.
    """
    # Without a valid manifest, the checkpoint was never completed.
    step, files = _read_manifest(path / MANIFEST)
    for name in files:
        _check(path / name, files)
    averaged = path / AVERAGED
    with _readable(path):
        return LoadedCheckpoint(
            path,
            step,
            safetensors.torch.load_file(path / MODEL),
            safetensors.torch.load_file(averaged) if AVERAGED in files else None,
            torch.load(path / 'state.pt', weights_only=True, map_location='cpu'),
        )


def _check(file: Path, files: Mapping[str, tuple[int, str]]) -> None:
    """Compare a file with its entry in the manifest, before it is read: a damaged tensor would load without an error."""
    if file.name not in files or not file.is_file():
        raise CheckpointError(f'{file}: is missing')
    size, digest = files[file.name]
    if file.stat().st_size != size:
        raise CheckpointError(f'{file}: has {file.stat().st_size} bytes, {size} were written; it is truncated')
    if hash_file(file) != digest:
        raise CheckpointError(f'{file}: its bytes differ from those that were written (sha256)')


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise CheckpointError(f'{path}: cannot be read: {type(error).__name__}: {first_line(error)}') from None


def weights_at(path: Path, *, raw: bool = False) -> dict[str, Tensor]:
    """Weights of a run folder (its best checkpoint, else its latest) or of a checkpoint folder.

    `raw`: weights as trained, even if the checkpoint has their EMA. Raises CheckpointError if there are none, or they are
    damaged. What only a resumed run needs, twice as large with Adam, is left on the disk.
    """
    folder = checkpoint_folder(path)
    _, files = _read_manifest(folder / MANIFEST)
    name = _file_of_weights(files, raw=raw)
    _check(folder / name, files)
    with _readable(folder):
        return safetensors.torch.load_file(folder / name)


def _file_of_weights(files: Container[str], *, raw: bool) -> str:
    return AVERAGED if AVERAGED in files and not raw else MODEL


def checkpoint_folder(path: Path) -> Path:
    """Folder of the checkpoint at `path`: itself, or the best, else the latest, of a run folder.

    Raises CheckpointError if there is none.
    """
    for place in (path, path / 'best', path / 'latest'):
        folder = resolve_pointer(place)
        if not folder.exists():  # killed while another checkpoint of this step replaced it
            folder = folder.with_name(f'.old_{folder.name}')
        if (folder / MANIFEST).is_file():
            return folder
    cure = ''
    if path.is_dir():
        files = sorted(
            each.name for each in path.iterdir() if each.suffix in ('.safetensors', '.bin', '.pth', '.pt', '.pdparams')
        )
        cure = f'; give a file in it: {", ".join(files[:5])}' if files else cure
        if (path / '.metadata').is_file():
            cure = f'; {JOIN} joins its parts in a file'
    raise CheckpointError(
        f'{path}: holds no weights (neither a run folder with a checkpoint, nor a checkpoint, nor a .safetensors file){cure}'
    )


def resolve_pointer(place: Path) -> Path:
    """Resolve `latest` or `best` of a run, a link or a text file, to the folder of its checkpoint; also any other path."""
    # A symbolic link, or a text file on disks without links.
    if is_pointer(place):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (place.parent / place.read_text().strip()).resolve()
    return place.resolve()


def is_pointer(place: Path) -> bool:
    """True if `place` is a text file with the path of a checkpoint: `latest` or `best` on a disk without links."""
    return place.name in POINTERS and place.is_file() and place.stat().st_size <= LONGEST_NAME


def step_of(path: Path) -> int:
    """Step of the checkpoint at `path`, see `checkpoint_folder`. Raises CheckpointError if there is none."""
    return _read_manifest(checkpoint_folder(path) / MANIFEST)[0]


def describe_checkpoint(path: Path, *, raw: bool = False) -> str:
    """Describe the weights that a run folder provides: `step 200 (best), EMA`. Raises CheckpointError if it has none."""
    folder = checkpoint_folder(path)
    pointer = next((f' ({name})' for name in ('best', 'latest') if resolve_pointer(path / name) == folder), '')
    step, files = _read_manifest(folder / MANIFEST)
    return f'step {step}{pointer}, {"EMA" if _file_of_weights(files, raw=raw) == AVERAGED else "as trained"}'


def _manifest(step: int, files: Mapping[str, Any]) -> bytes:
    """Content of the manifest. Its own checksum, `seal`, comes last: without it a changed step would go unnoticed."""
    # Files, with their sizes and checksums, are protected by the checksum of the manifest itself.
    facts = {'format': FORMAT, 'step': step, 'files': files}
    return json.dumps({**facts, 'seal': _checksum(facts)}, indent=1).encode()


def _read_manifest(path: Path) -> tuple[int, dict[str, tuple[int, str]]]:
    """Read the step of a checkpoint, and size and sha256 of each of its files. Raises CheckpointError and FormatError."""
    try:
        facts = dict(json.loads(path.read_text()))
        if isinstance(number := facts.get('format'), int) and number not in READABLE:
            cause = (
                'a newer version of Phalanx wrote it: update Phalanx here' if number > FORMAT else 'it is not one of Phalanx'
            )
            raise FormatError(f'{path.parent}: has format {number}, this version reads up to {FORMAT}; {cause}')
        checksum = facts.pop('seal', None)
        if checksum != (_checksum(facts) if number != 1 else None):
            raise CheckpointError(f'{path}: its bytes differ from those that were written (checksum)')
        # Names only: a manifest must not lead to files elsewhere.
        files = {Path(name).name: (int(file['bytes']), str(file['sha256'])) for name, file in facts['files'].items()}
        if any(len(name.encode()) > LONGEST_NAME for name in files):
            raise ValueError('it has a file name that is too long')
        return int(facts['step']), files
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f'{path}: cannot be read ({error}); the checkpoint is incomplete') from None


def _checksum(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _copy_to_host(value: Any) -> Any:
    """Copy of `value` with all its tensors copied to host memory."""
    if isinstance(value, Tensor):
        # A copy on CPUs as well: training goes on changing the tensors.
        return value.detach().to('cpu', copy=True)
    if isinstance(value, Mapping):
        return {key: _copy_to_host(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy_to_host(part) for part in value)
    return value


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _serialise(state: Mapping[str, Any]) -> bytes:
    """Serialise `state` in memory: the writer of torch does not tell a full disk from other errors."""
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getvalue()
