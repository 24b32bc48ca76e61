"""Progress of a run in the status of its TrainJob (Kubeflow Trainer 2.2 and later, feature TrainJobStatus)."""

import json
import logging
import math
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from phalanx.report.trackers import Run, Tracker

URL, CERTIFICATE, TOKEN = (f'KUBEFLOW_TRAINER_SERVER_{name}' for name in ('URL', 'CA_CERT', 'TOKEN'))  # set by the controller
PAUSE = 5.0  # seconds between two updates, as Kubeflow asks
MOST_METRICS, LONGEST_NAME = 256, 64  # limits of the TrainJob

log = logging.getLogger('phalanx')


class TrainJobStatus:
    """Tracker that sends percentage, remaining time and latest values from a thread of its own. Failures are logged once."""

    def __init__(self, total_steps: int, variables: Mapping[str, str] = os.environ, pause: float = PAUSE) -> None:
        self.total_steps, self.variables, self.pause = total_steps, variables, pause
        self.values: dict[str, float] = {}
        self.sender: threading.Thread | None = None
        self.sent = -math.inf  # time of the last update
        self.has_failed = False

    def start(self, run: Run, /) -> None:
        self.begun, self.begun_at, self.step = time.monotonic(), run.step, run.step
        self._send()

    def log(self, step: int, values: Mapping[str, float], /) -> None:
        self.step = step
        self.values |= {name[:LONGEST_NAME]: value for name, value in values.items() if math.isfinite(value)}
        if time.monotonic() - self.sent >= self.pause and not (self.sender and self.sender.is_alive()):
            self.sender = threading.Thread(target=self._send, name='status of the TrainJob', daemon=True)
            self.sender.start()

    def finish(self, summary: Mapping[str, Any] | None, /) -> None:
        if self.sender is not None:
            self.sender.join()
        self._send()

    def _send(self) -> None:
        self.sent = time.monotonic()
        token = Path(self.variables[TOKEN])
        body = json.dumps({'trainerStatus': self._status()}).encode()
        try:
            headers = {'Authorization': f'Bearer {token.read_text().strip()}', 'Content-Type': 'application/json'}  # rotates
            context = ssl.create_default_context(cafile=self.variables[CERTIFICATE])
            request = Request(self.variables[URL], body, headers, method='POST')
            urlopen(request, timeout=5, context=context).close()
        except (OSError, ValueError) as error:
            if not self.has_failed:
                log.warning(f'the progress of the TrainJob was not updated: {error}')
            self.has_failed = True

    def _status(self) -> dict[str, Any]:
        """Fields of `TrainerStatus` of trainer.kubeflow.org/v1alpha1; its values are strings."""
        made, left = self.step - self.begun_at, max(0, self.total_steps - self.step)
        status: dict[str, Any] = {
            'metrics': [{'name': name, 'value': f'{value:g}'} for name, value in list(self.values.items())[:MOST_METRICS]],
            'lastUpdatedTime': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
        }
        if self.total_steps:
            status['progressPercentage'] = min(100, 100 * self.step // self.total_steps)
        if made and self.total_steps:
            status['estimatedRemainingSeconds'] = round((time.monotonic() - self.begun) / made * left)
        return status


def trainjob_tracker(total_steps: int) -> dict[str, Callable[[], Tracker]]:
    """Tracker for the TrainJob of this process, by name; empty outside of one, or where the feature is off."""
    if not all(os.environ.get(name) for name in (URL, CERTIFICATE, TOKEN)):
        return {}
    return {'TrainJob': partial(TrainJobStatus, total_steps)}
