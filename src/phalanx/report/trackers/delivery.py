"""Base of the trackers with a client of their own. A thread sends the lines of metrics.jsonl, each once.

metrics.jsonl is the queue: a server that is slow or away delays nothing, and what it lacks is sent as soon as it answers, by a
later start if need be. A resumed run writes the same lines again; those that the tracker has are not sent again. The key of the
tracker's run and the last line that it has are in the run folder, `tracker_<name>.json`.

The pictures of an evaluation go with its line. Only the latest are kept, so a server that was away lacks those before.
"""

import json
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from phalanx.report.trackers.interface import Picture, PostponedError, Run
from phalanx.system.disk import write_atomically

PATIENCE_S = 60  # at the end of a run, for a server that does not answer
LONGEST_PAUSE_S = 60  # between two attempts
NO_VALUES = ('kind', 'step', 'samples', 'seconds', 'raw', 'terms')


class Line(NamedTuple):
    """Line of metrics.jsonl. At one step the log line comes before the evaluation."""

    step: int
    is_evaluation: bool


class Delivery(ABC):
    """Base class of trackers that send from a thread. Subclasses call the tracker's client, which may raise anything."""

    name: ClassVar[str]
    is_stored: ClassVar[bool]  # True if `send` returns only once the line is safe, whatever happens to this process

    def __init__(self, *, weights: bool = False) -> None:
        """`weights`: also upload the best checkpoint at the end of the run, and the exports that are made of it later."""
        self._uploads_weights = weights
        self._exports: Sequence[Path] = ()

    def start(self, run: Run, /) -> None:
        self.run = run
        self._file = run.folder / f'tracker_{self.name}.json'
        self._news, self._end = threading.Event(), threading.Event()
        self._shown: tuple[int, Mapping[str, Picture]] = -1, {}  # step of the latest pictures
        self._summary: Mapping[str, Any] | None = None
        self._problem: Exception | None = None
        self._is_reported = self._is_done = False
        # A daemon: a server that does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._deliver, name=self.name, daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float], /) -> None:
        """Wake the thread: the line is in metrics.jsonl already."""
        self._news.set()
        if self._problem is not None and not self._is_reported:
            self._is_reported = True
            raise PostponedError(f'{type(self._problem).__name__}: {self._problem}') from self._problem

    def show(self, step: int, pictures: Mapping[str, Picture], /) -> None:
        """Keep the pictures for the line of their evaluation, which is not in metrics.jsonl yet."""
        self._shown = step, pictures

    def finish(self, summary: Mapping[str, Any] | None, /) -> None:
        self._summary = summary
        self._end.set()
        self._news.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._is_done = True  # no further attempt: a later start of the run in this process would send twice
            reason = f' ({self._problem})' if self._problem else ''
            raise PostponedError(
                f'not complete {PATIENCE_S} s after the end of the run{reason}; start it again to send the rest'
            )

    def send_exports(self, run: Run, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """End the tracker's run once more, with these files, if it has that run and keeps weights."""
        self._file = run.folder / f'tracker_{self.name}.json'
        if self._uploads_weights and self._file.is_file():
            self.run, self._exports = run, files
            self.connect(run, self._read_state()[0])
            self.close(summary)

    @abstractmethod
    def connect(self, run: Run, key: str) -> Line | None:
        """Continue the tracker's run with this key, or begin it; return the last line that it has, None if it cannot tell."""

    @abstractmethod
    def send(self, line: Line, values: Mapping[str, float]) -> None:
        """Send the values of a line, by full name (`train/loss`, `eval/mean_iou`)."""

    @abstractmethod
    def send_pictures(self, line: Line, pictures: Mapping[str, Picture]) -> None:
        """Send the pictures of an evaluation, right after its values. A failure is reported; they are not sent again."""

    @abstractmethod
    def close(self, summary: Mapping[str, Any] | None) -> None:
        """End the tracker's run; `summary` is None if the run was stopped or failed."""

    def artifacts(self, summary: Mapping[str, Any] | None) -> dict[str, list[Path]]:
        """Return the files to keep with the tracker's run, by kind: `report`, and if asked for, `weights` and `export`."""
        names = ('config.yml', 'report.html', 'summary.json')
        files = {'report': [self.run.folder / name for name in names]}
        if self._uploads_weights and summary is not None:
            step = summary['steps'] if summary.get('best_step') is None else summary['best_step']
            files['export'] = list(self._exports)
            files['weights'] = sorted((self.run.folder / 'checkpoints' / f'step_{step:07}').glob('*.safetensors'))
        present = {kind: [file for file in found if file.is_file()] for kind, found in files.items()}
        return {kind: found for kind, found in present.items() if found}

    def _deliver(self) -> None:
        pause, self._position, self._is_connected = 1.0, 0, False
        while not self._is_done:
            try:
                self._send_news()
                pause = 1.0
            except Exception as error:  # noqa: BLE001 - of a client, which may raise anything
                self._problem = error
                self._is_connected &= not self.is_stored  # it may have the line all the same: `connect` asks
                self._end.wait(pause)
                if self._end.is_set():
                    time.sleep(1)  # the run waits
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _send_news(self) -> None:
        """Send all lines that the tracker lacks, then wait for more; at the end of the run, end the tracker's run."""
        if not self._is_connected:
            self._key, noted = self._read_state()
            self._write_state(noted)  # before the tracker knows the key: a kill must not begin two runs
            self._sent, self._is_connected = self.connect(self.run, self._key) or noted, True
        is_ended = self._end.is_set()  # before the lines are read, as none comes after it
        for position, line, values in read_from(self.run.folder / 'metrics.jsonl', self._position):
            if line > self._sent and values:
                self.send(line, values)
                self._sent = line
                if self.is_stored:
                    self._write_state(line)
                if line == (self._shown[0], True):
                    self._try_pictures(line, self._shown[1])
            self._position = position
        if is_ended:
            self.close(self._summary)
            self._write_state(self._sent)
            self._is_done = True
        else:
            self._news.wait()
            self._news.clear()

    def _try_pictures(self, line: Line, pictures: Mapping[str, Picture]) -> None:
        try:
            self.send_pictures(line, pictures)
        except Exception as error:  # noqa: BLE001 - of a client, which may raise anything
            self._problem = error

    def _read_state(self) -> tuple[str, Line]:
        if not self._file.is_file():
            return secrets.token_hex(4), Line(-1, False)
        state = json.loads(self._file.read_text(encoding='utf-8'))
        return str(state['key']), Line(int(state['step']), bool(state['is_evaluation']))

    def _write_state(self, sent: Line) -> None:
        write_atomically(self._file, json.dumps({'key': self._key, **sent._asdict()}).encode())


def read_from(file: Path, position: int) -> Iterator[tuple[int, Line, dict[str, float]]]:
    """Yield the complete lines behind a position in bytes: the position behind each, the line, and its values by full name."""
    with (file if file.is_file() else Path(os.devnull)).open('rb') as lines:
        lines.seek(position)
        for text in lines:
            if not text.endswith(b'\n'):
                return
            position += len(text)
            record = json.loads(text)
            kind = record['kind']
            values = {f'{kind}/{key}': value for key, value in record.items() if key not in NO_VALUES}
            values |= {f'{kind}/loss/{key}': value for key, value in record.get('terms', {}).items()}
            values |= {f'eval as trained/{key}': value for key, value in (record.get('raw') or {}).items()}
            known = {key: float(value) for key, value in values.items() if value is not None}
            yield position, Line(int(record['step']), kind == 'eval'), known


def flatten(config: Mapping[str, Any], path: str = '') -> dict[str, Any]:
    """Return the leaves of a nested recipe by dotted key."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flatten(value, f'{path}{key}.') if isinstance(value, Mapping) and value else {f'{path}{key}': value}
    return found
