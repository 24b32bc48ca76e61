"""ClearML."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from phalanx.report.trackers.delivery import Delivery, Line, flatten
from phalanx.report.trackers.interface import Picture, Run

Plot = tuple[str, str]  # title of a plot, and name of its series: `loss`, `train`


class ClearML(Delivery):
    """Task of ClearML. Needs the package clearml; with CLEARML_OFFLINE_MODE=1, sessions are kept in the run folder.

    Its client sends single values, so a kill may split a line: `connect` asks for the last step of each value.
    """

    name, is_stored = 'clearml', False  # a thread of its own sends every few seconds

    def __init__(self, *, project: str = 'phalanx', weights: bool = False) -> None:
        super().__init__(weights=weights)
        # Its client would fork this process, whose threads hold locks and pipes: both then wait for each other at the end.
        from clearml.config import config_obj

        config_obj.set_overrides({'sdk': {'development': {'report_use_subprocess': False}}})
        from clearml import Task

        self.project, self._task_of, self._last = project, Task, dict[Plot, int]()

    def connect(self, run: Run, key: str) -> Line | None:
        earlier = None
        if self._task_of.is_offline():
            os.environ.setdefault('CLEARML_CACHE_DIR', str(run.folder / 'clearml'))
            self._last = last_steps(Path(os.environ['CLEARML_CACHE_DIR']) / 'offline', key)
        elif found := self._task_of.get_tasks(project_name=self.project, tags=[key]):
            earlier = found[0].id
            scalars = found[0].get_all_reported_scalars()
            self._last = {(title, name): max(of['x']) for title, series in scalars.items() for name, of in series.items()}
        self._task = self._task_of.init(
            project_name=self.project,
            task_name=run.name,
            tags=[key],
            reuse_last_task_id=False,
            continue_last_task=earlier or False,
            auto_connect_arg_parser=False,
            auto_connect_frameworks=False,
            auto_connect_streams=False,
            auto_resource_monitoring=False,
        )
        self._task.set_initial_iteration(0)  # else a continued task adds its last step to ours
        if earlier is None:
            self._task.connect_configuration(dict(run.config), name='recipe')
            self._task.connect_configuration({**run.facts, 'run folder': str(run.folder)}, name='run')
        return None

    def send(self, line: Line, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            group, _, title = name.partition('/')
            if line.step > self._last.get((title, group), -1):
                self._task.get_logger().report_scalar(title, group, iteration=line.step, value=value)

    def send_pictures(self, line: Line, pictures: Mapping[str, Picture]) -> None:
        for name, picture in pictures.items():
            self._task.get_logger().report_image(name, picture.caption, iteration=line.step, image=picture.image)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        for name, value in flatten(summary or {}).items():
            if isinstance(value, int | float):
                self._task.get_logger().report_single_value(name, value)
        for files in self.artifacts(summary).values():
            for file in files:
                self._task.upload_artifact(file.name, artifact_object=file, wait_on_upload=True)
        if summary is None and not self._task_of.is_offline():
            self._task.mark_stopped(force=True)
        self._task.close()


def last_steps(sessions: Path, key: str) -> dict[Plot, int]:
    """Return the last step of each value in the offline sessions whose task has the tag `key`."""
    last: dict[Plot, int] = {}
    for folder in sessions.glob('offline-*'):
        with contextlib.suppress(OSError, ValueError):
            if key in json.loads((folder / 'task.json').read_text(encoding='utf-8')).get('tags', ()):
                for event in _events(folder / 'metrics.jsonl'):
                    if 'metric' in event and 'value' in event:
                        plot = event['metric'], event['variant']
                        last[plot] = max(last.get(plot, -1), int(event['iter']))
    return last


def _events(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding='utf-8').splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):  # the last line of a killed process
            yield from json.loads(line)
