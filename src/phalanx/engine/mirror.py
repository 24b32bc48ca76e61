"""Run folders in buckets (`--save_dir s3://BUCKET/PREFIX`): a folder on this machine, and its copy in the bucket.

The bucket has the layout of a run folder, with a digest in the names of checkpoints: nothing that `latest` or `best` name is
ever overwritten. These two are text files and change last, so whoever reads them finds complete checkpoints.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from phalanx.system.buckets import StoreError, StorePath, forget, remove_object, upload
from phalanx.system.disk import LOCK, exclude_others, free_name, is_locked, remove_own, user_caches, write_atomically
from phalanx.system.errors import RequestError, RunError, describe_error
from phalanx.weights.checkpoint import MANIFEST, POINTERS, Checkpoints, resolve_pointer

STORED = re.compile(r'checkpoints/(step_\d+)-[0-9a-f]{12}')  # a checkpoint in the bucket
KNOWN = '.bucket.json'  # file in the folder of this machine: the pointers in the bucket when both were equal
POLL_S = 1  # seconds between two looks for a new checkpoint
ATTEMPTS = 10  # at fetching a run that is written meanwhile
Pointers = dict[str, str]  # `latest` and `best` -> name of the checkpoint in the bucket


class Mirror:
    """Run folder of this machine and its copy at `url`."""

    def __init__(self, folder: Path, url: StorePath) -> None:
        self.folder, self.url = folder, url
        self.warn: Callable[[str], None] = lambda message: None
        self._sent: dict[str, tuple[int, int]] = {}  # time and size of each file when it was uploaded
        self._ours: set[str] = set()  # checkpoints that the pointers may name while nobody else writes

    # Reading.

    def has_run(self) -> bool:
        """True if the bucket has a run to continue. Raises StoreError."""
        return bool(self._pointers())

    def restore(self) -> None:
        """Fetch the run from the bucket, unless this machine wrote or fetched what is there, or writes it now.

        Raises StoreError. A folder of this machine with checkpoints that the bucket lacks, though its run went on elsewhere or
        was removed there, is renamed.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with exclude_others(self.folder.with_name(f'.{self.folder.name}.lock')):
            attempts = 0
            while not is_locked(self.folder / LOCK) and (there := self._pointers()) != (known := self._known()):
                if not there or self._own() - {*known.values(), *there.values()}:
                    self.folder.rename(free_name(self.folder))
                try:
                    self._fetch(there)
                except (StoreError, FileNotFoundError) as error:  # removed or overwritten by a run on another machine?
                    attempts += 1
                    if error.errno not in (errno.ENOENT, errno.ESTALE) or attempts == ATTEMPTS:
                        raise
                    time.sleep(1)
            self._ours = set(self._known().values())

    def _pointers(self) -> Pointers:
        forget(self.url)
        found = {name: (self.url / name).read_text().strip() for name in POINTERS if (self.url / name).is_file()}
        if wrong := [f'{self.url / name} contains {text!r:.80}' for name, text in found.items() if not STORED.fullmatch(text)]:
            raise StoreError(errno.EINVAL, f'is not a run that Phalanx stored: {wrong[0]}', str(self.url))
        return found if 'latest' in found else {}

    def _own(self) -> set[str]:
        """Names in the bucket of the checkpoints of this machine."""
        names = set()
        for path in Checkpoints(self.folder, keep=1).all():
            with contextlib.suppress(FileNotFoundError):  # of one that the run has just removed
                names.add(_name_in_bucket(path))
        return names

    def _known(self) -> Pointers:
        return dict(json.loads((self.folder / KNOWN).read_text())) if (self.folder / KNOWN).is_file() else {}

    def _fetch(self, there: Pointers) -> None:
        """Bring the folder to the state in the bucket, if it has a run. No checkpoint is ever incomplete in its place."""
        if not there:
            return
        steps = {name: name.removeprefix('checkpoints/').partition('-')[0] for name in there.values()}
        root = self.folder / 'checkpoints'
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.folder, prefix='.fetching-') as place:
            for name, step in steps.items():
                if not (root / step).is_dir() or _name_in_bucket(root / step) != name:
                    (self.url / name).copy_to(Path(place, step))
                    remove_own(root / step)  # another one of this step, which was in the bucket
                    Path(place, step).rename(root / step)
        for name in self.url.names():
            if not name.startswith('checkpoints/') and name not in POINTERS:
                with contextlib.suppress(IsADirectoryError):
                    (self.url / name).copy_to(self.folder / name)
        for path in Checkpoints(self.folder, keep=1).all():
            if path.name not in steps.values():
                remove_own(path)  # fetched or written from here, and replaced in the bucket
        for pointer in POINTERS:
            remove_own(self.folder / pointer)
            if pointer in there:
                write_atomically(self.folder / pointer, f'checkpoints/{steps[there[pointer]]}\n'.encode())
        self._note(there)

    # Writing.

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Context in which a thread uploads each new checkpoint. At its end all is uploaded; raises RunError if it cannot be.

        After an error the folder is uploaded, too, but that error is the one that is raised. `warn` gets failures in between.
        """
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(over,), name='mirror', daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            over.set()
            thread.join()
            with contextlib.suppress(OSError, RunError):
                self.publish()
            raise
        over.set()
        thread.join()
        try:
            self.publish()
        except OSError as error:
            raise RunError(
                f'{describe_error(error)}; the run is complete in {self.folder}: repeat the command here to upload it'
            ) from None

    def _follow(self, over: threading.Event) -> None:
        seen = None
        while not over.wait(POLL_S):
            now = [resolve_pointer(self.folder / pointer) for pointer in POINTERS]
            if now != seen and now[0].is_dir():
                try:
                    self.publish()
                except (OSError, RunError) as error:
                    self.warn(f'not uploaded: {describe_error(error)}; the run continues in {self.folder}')
            seen = now

    def publish(self) -> None:
        """Upload what has changed since the last time. Raises StoreError, and RunError if another machine writes there.

        The order matters, since a kill may come at any point: 1. the checkpoints that the pointers name, 2. logs and reports,
        3. the pointers, 4. old checkpoints are removed.
        """
        there = self._pointers()
        if others := set(there.values()) - self._ours:
            raise RunError(f'{self.url}: another run has written {min(others)} there; its folder is not overwritten')
        with TemporaryDirectory(dir=self.folder, prefix='.publishing-') as place:
            target = self._hold(Path(place))
            complete = {name.rpartition('/')[0] for name in self.url.names() if name.endswith(f'/{MANIFEST}')}
            for name in sorted(set(target.values()) - complete):
                files = Path(place, name).iterdir()
                for file in sorted(files, key=lambda file: file.name == MANIFEST):  # last: with it, the checkpoint is complete
                    upload(file, self.url / name / file.name)
            self._upload_files(Path(place))
            for pointer in reversed(POINTERS):
                if pointer in target and there.get(pointer) != target[pointer]:
                    self._ours.add(target[pointer])
                    Path(place, pointer).write_text(f'{target[pointer]}\n')
                    upload(Path(place, pointer), self.url / pointer)
        self._note(target)
        here = self._own() | set(target.values())
        for name in self.url.names():
            if (match := STORED.match(name)) and match[0] not in here:
                with contextlib.suppress(OSError):  # costs space, not the run; the next time it is tried again
                    remove_object(self.url / name)

    def _hold(self, place: Path) -> Pointers:
        """Link the files of the newest and the best checkpoint into `place`, as a run removes its old ones at any time."""
        for _ in range(ATTEMPTS):
            held: Pointers = {}
            with contextlib.suppress(FileNotFoundError):
                for pointer in POINTERS:
                    if (path := resolve_pointer(self.folder / pointer)).is_dir():
                        held[pointer] = _name_in_bucket(path)
                        copy = place / held[pointer]
                        copy.mkdir(parents=True, exist_ok=True)
                        for file in path.iterdir():
                            if not (copy / file.name).exists():
                                os.link(file, copy / file.name)
                return held
        raise StoreError(errno.EIO, 'its checkpoints change too quickly to upload them', str(self.folder))

    def _upload_files(self, place: Path) -> None:
        """Upload the files other than checkpoints that have changed, from copies: some grow meanwhile."""
        for file in sorted(self.folder.rglob('*')):
            name = file.relative_to(self.folder).as_posix()
            is_own = name.startswith(('checkpoints/', '.')) or '/.' in name or name in (LOCK, *POINTERS)
            with contextlib.suppress(FileNotFoundError):  # of a temporary file
                if not is_own and file.is_file():
                    state = file.stat()
                    if self._sent.get(name) != (state.st_mtime_ns, state.st_size):
                        upload(Path(shutil.copyfile(file, place / 'file')), self.url / name)
                        self._sent[name] = state.st_mtime_ns, state.st_size

    def _note(self, pointers: Pointers) -> None:
        self._ours |= set(pointers.values())
        write_atomically(self.folder / KNOWN, json.dumps(pointers).encode())


def open_mirror(place: StorePath) -> Mirror:
    """Mirror of the run at a URL, in the cache folder of the user. Raises RequestError for a web server, which has no lists."""
    if str(place).startswith('http'):
        raise RequestError(f'{place}: a web server cannot hold a run folder; use s3://, gs:// or az://')
    home = user_caches() / 'phalanx' / 'runs'
    return Mirror(home / hashlib.sha256(str(place).encode()).hexdigest()[:12] / place.name, place)


def _name_in_bucket(checkpoint: Path) -> str:
    digest = hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest()[:12]
    return f'checkpoints/{checkpoint.name}-{digest}'
