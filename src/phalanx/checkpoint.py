"""Checkpoints: everything to go on with a run. One on disk is whole or is not there.

checkpoints/step_0000100/   model.safetensors     the weights in training
                            averaged.safetensors  the weights that are evaluated and exported, where the run averages them
                            state.pt              optimizer, loss scale, moving average, best metric: tensors and numbers only
                            manifest.json         format, step, and size and sha256 of each file; written last
latest, best                links beside `checkpoints`, changed after the checkpoint is in place
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

FORMAT = 1


class CheckpointError(Exception):
    """A checkpoint that cannot be used; says which file and why."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory."""

    path: Path
    step: int
    model: dict[str, Tensor]
    averaged: dict[str, Tensor] | None
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep

    @property
    def root(self) -> Path:
        return self.folder / 'checkpoints'

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
        self.root.mkdir(parents=True, exist_ok=True)
        final, aside = self.root / f'step_{step:07d}', self.root / f'.step_{step:07d}.{os.getpid()}'
        try:
            self._remove_leftovers()
            aside.mkdir()
            parts = {'model.safetensors': safetensors.torch.save(_plain(model)), 'state.pt': _saved(state)}
            if averaged is not None:
                parts['averaged.safetensors'] = safetensors.torch.save(_plain(averaged))
            files = {name: {'bytes': len(part), 'sha256': hashlib.sha256(part).hexdigest()} for name, part in parts.items()}
            parts['manifest.json'] = json.dumps({'format': FORMAT, 'step': step, 'files': files}, indent=1).encode()
            for name, part in parts.items():
                (aside / name).write_bytes(part)
                _flush(aside / name)
            _flush(aside)
            if final.exists():  # the same step again, after a resume from an earlier one
                shutil.rmtree(final)
            aside.rename(final)
            _flush(self.root)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self._point('latest', final)
        if best:
            self._point('best', final)
        self._prune()
        return final

    def newest(self) -> tuple[Loaded | None, list[str]]:
        """The newest whole checkpoint, and what is wrong with each newer one that was passed over."""
        damaged: list[str] = []
        for path in reversed(self.all()):
            try:
                return load(path), damaged
            except CheckpointError as error:
                damaged.append(str(error))
        return None, damaged

    def all(self) -> list[Path]:
        """The checkpoints in place, oldest first; whether they are whole shows in loading."""
        return sorted(self.root.glob('step_*'), key=lambda path: path.name) if self.root.is_dir() else []

    def _point(self, name: str, target: Path) -> None:
        aside = self.folder / f'.{name}.{os.getpid()}'
        aside.unlink(missing_ok=True)
        aside.symlink_to(target.relative_to(self.folder))
        aside.replace(self.folder / name)

    def _prune(self) -> None:
        kept = {(self.folder / name).resolve() for name in ('latest', 'best')}
        for path in self.all()[: -self.keep]:
            if path.resolve() not in kept:
                shutil.rmtree(path)

    def _remove_leftovers(self) -> None:
        for path in self.root.glob('.step_*'):  # of a process that died while it wrote
            shutil.rmtree(path, ignore_errors=True)


def load(path: Path) -> Loaded:
    """The checkpoint at `path`, after its files were checked against the manifest; loading runs no code from them.

    Raises CheckpointError naming the file that is missing, cut short, changed or of an unknown format.
    """
    try:
        manifest = json.loads((path / 'manifest.json').read_text())
        files, step = dict(manifest['files']), int(manifest['step'])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{path / "manifest.json"}: cannot be read ({error}); the checkpoint is not whole') from None
    if manifest.get('format') != FORMAT:
        raise CheckpointError(f'{path}: is of format {manifest.get("format")}; this version of Phalanx reads format {FORMAT}')
    for name, facts in files.items():
        file = path / Path(name).name
        if not file.is_file():
            raise CheckpointError(f'{file}: is missing')
        if file.stat().st_size != facts['bytes']:
            raise CheckpointError(f'{file}: has {file.stat().st_size} bytes, {facts["bytes"]} were written; it was cut short')
        if _digest(file) != facts['sha256']:
            raise CheckpointError(f'{file}: its bytes are not those that were written (sha256 differs)')
    averaged = path / 'averaged.safetensors'
    try:
        return Loaded(
            path,
            step,
            safetensors.torch.load_file(path / 'model.safetensors'),
            safetensors.torch.load_file(averaged) if averaged.name in files else None,
            torch.load(path / 'state.pt', weights_only=True, map_location='cpu'),
        )
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise CheckpointError(f'{path}: cannot be read: {error}') from None


def weights_at(path: Path) -> dict[str, Tensor]:
    """The weights to use from a run folder (its best, else its latest), a checkpoint folder or a `.safetensors` file.

    Raises CheckpointError when there are none or they are damaged.
    """
    if path.is_file():
        try:
            return safetensors.torch.load_file(path)
        except safetensors.SafetensorError as error:
            raise CheckpointError(f'{path}: is no whole .safetensors file: {error}') from None
    for place in (path, path / 'best', path / 'latest'):
        if (place / 'manifest.json').is_file():
            loaded = load(place.resolve())
            return loaded.averaged or loaded.model
    raise CheckpointError(
        f'{path}: holds no weights (neither a run folder with a checkpoint, nor a checkpoint, nor a .safetensors file)'
    )


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _saved(state: Mapping[str, Any]) -> bytes:
    """`state` as torch saves it. By way of memory: its own writer tells a full disk from nothing else."""
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getvalue()


def _digest(path: Path) -> str:
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _flush(path: Path) -> None:
    """Makes sure that a file, or the names in a folder, are on disk and not only on their way."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
