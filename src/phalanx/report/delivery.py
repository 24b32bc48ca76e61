"""Trackers on servers: MLflow, and Weights & Biases. A thread sends the lines of metrics.jsonl, each once.

metrics.jsonl is the queue: a server that is slow or away delays nothing, and what it lacks is sent as soon as it answers, by a
later start if need be. A resumed run writes the same lines again; those that the tracker has are not sent again. The key of the
tracker's run and the last line that it has are in the run folder, `tracker_<name>.json`.
"""

import json
import math
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from phalanx.report.tracker import PostponedError, Run
from phalanx.system.disk import write_atomically

PATIENCE_S = 60  # at the end of a run, for a server that does not answer
LONGEST_PAUSE_S = 60  # between two attempts
NO_VALUES = ('kind', 'step', 'samples', 'seconds', 'raw', 'terms')
LONGEST_PARAMETER = 500  # characters of a parameter in MLflow's older stores


class Line(NamedTuple):
    """Line of metrics.jsonl. At one step the log line comes before the evaluation."""

    step: int
    is_evaluation: bool


class Delivery(ABC):
    """Base class of trackers that send from a thread. Subclasses call the tracker's client, which may raise anything."""

    name: ClassVar[str]
    is_stored: ClassVar[bool]  # True if `send` returns only once the line is safe, whatever happens to this process

    def start(self, run: Run, /) -> None:
        self.run = run
        self._file = run.folder / f'tracker_{self.name}.json'
        self._news, self._end = threading.Event(), threading.Event()
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

    @abstractmethod
    def connect(self, run: Run, key: str) -> Line | None:
        """Continue the tracker's run with this key, or begin it; return the last line that it has, None if it cannot tell."""

    @abstractmethod
    def send(self, line: Line, values: Mapping[str, float]) -> None:
        """Send the values of a line, by full name (`train/loss`, `eval/mean_iou`)."""

    @abstractmethod
    def close(self, summary: Mapping[str, Any] | None) -> None:
        """End the tracker's run; `summary` is None if the run was stopped or failed."""

    def _deliver(self) -> None:
        pause, self._position, self._is_connected = 1.0, 0, False
        while not self._is_done:
            try:
                self._send_news()
                pause = 1.0
            except Exception as error:  # noqa: BLE001 - of a client, which may raise anything
                self._problem = error
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
        for position, line, values in read_from(self.run.folder / 'metrics.jsonl', self._position):
            if line > self._sent and values:
                self.send(line, values)
                self._sent = line
                if self.is_stored:
                    self._write_state(line)
            self._position = position
        if self._end.is_set():
            self.close(self._summary)
            self._write_state(self._sent)
            self._is_done = True
        else:
            self._news.wait()
            self._news.clear()

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


class MLflow(Delivery):
    """Run of MLflow, on the server of MLFLOW_TRACKING_URI. Needs the package mlflow or mlflow-skinny."""

    name, is_stored = 'mlflow', True

    def __init__(self, *, experiment: str = 'phalanx') -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self.experiment, self._client_of, self._metric, self._param = experiment, MlflowClient, Metric, Param

    def connect(self, run: Run, key: str) -> Line | None:
        self._client = self._client_of()
        experiment = self._client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self.experiment)
        found = self._client.search_runs([number], filter_string=f"tags.phalanx_key = '{key}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status='RUNNING')
            return self._last_line()
        tags = {'phalanx_key': key, 'run folder': str(run.folder)}
        self._run_id = self._client.create_run(number, run_name=run.name, tags=tags).info.run_id
        parameters = [self._param(key, str(value)[:LONGEST_PARAMETER]) for key, value in flatten(run.config).items()]
        for begin in range(0, len(parameters), 100):  # the maximum per call
            self._client.log_batch(self._run_id, params=parameters[begin : begin + 100])
        return None

    def _last_line(self) -> Line:
        """Return the last line that the server has: a kill may come between its answer and our note of it."""
        steps = {False: -1, True: -1}
        for name in self._client.get_run(self._run_id).data.metrics:
            if name == 'train/loss' or (name.startswith('eval/') and steps[True] < 0):
                history = self._client.get_metric_history(self._run_id, name)
                steps[name != 'train/loss'] = max((one.step for one in history), default=-1)
        return max(Line(step, is_evaluation) for is_evaluation, step in steps.items())

    def send(self, line: Line, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(
            self._run_id, metrics=[self._metric(name, value, now, line.step) for name, value in values.items()]
        )

    def close(self, summary: Mapping[str, Any] | None) -> None:
        for name in ('config.yml', 'report.html', 'summary.json'):
            if (self.run.folder / name).is_file():
                self._client.log_artifact(self._run_id, str(self.run.folder / name))
        self._client.set_terminated(self._run_id, 'KILLED' if summary is None else 'FINISHED')


class WandB(Delivery):
    """Run of Weights & Biases. Needs the package wandb; WANDB_MODE=offline keeps everything in the run folder.

    Its own step is twice ours, plus 1 for an evaluation, since it drops what is not above the last step. Charts are over
    `step`.
    """

    name, is_stored = 'wandb', False  # its process keeps some lines in memory, and is killed with this one

    def __init__(self, *, project: str = 'phalanx') -> None:
        import wandb

        self.project, self._wandb = project, wandb
        if os.environ.get('WANDB_MODE', 'online') in ('online', 'shared') and not wandb.api.api_key:
            raise ValueError('not logged in: `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline')

    def connect(self, run: Run, key: str) -> Line | None:
        self._tracked = self._wandb.init(
            project=self.project,
            name=run.name,
            id=key,
            resume='allow',
            dir=str(run.folder),
            config=dict(run.config),
            settings=self._wandb.Settings(console='off', silent=True),
        )
        self._tracked.define_metric('step')
        self._tracked.define_metric('*', step_metric='step')
        # Offline, each start has a file of its own, which begins with what was not surely stored; `wandb sync` joins them.
        last = self._tracked.step - 1
        return Line(last // 2, last % 2 == 1) if last > 0 else None

    def send(self, line: Line, values: Mapping[str, float]) -> None:
        self._tracked.log({**values, 'step': line.step}, step=2 * line.step + line.is_evaluation)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        for name, value in flatten(summary or {}).items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._tracked.summary[f'summary/{name}'] = value
        if (page := self.run.folder / 'report.html').is_file():
            artifact = self._wandb.Artifact(f'report-{self._tracked.id}', type='report')
            artifact.add_file(str(page))
            self._tracked.log_artifact(artifact)
        self._tracked.finish(exit_code=0 if summary is not None else 1)
