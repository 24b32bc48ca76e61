"""Trackio: a SQLite file per project, in TRACKIO_DIR or the user's cache."""

import os
from collections.abc import Mapping
from typing import Any

from phalanx.report.trackers.delivery import Delivery, Line
from phalanx.report.trackers.interface import Picture, Run

REMOTE = ('TRACKIO_SPACE_ID', 'TRACKIO_SERVER_URL')


class Trackio(Delivery):
    """Run of Trackio. Needs the package trackio.

    It logs to this machine only: a client that sends to a Space keeps a queue of its own, which a kill may lose or repeat.
    """

    name, is_stored = 'trackio', False  # a thread of its own writes twice a second; `connect` asks the file what it has

    def __init__(self, *, project: str = 'phalanx', weights: bool = False) -> None:
        super().__init__(weights=weights)
        if remote := [name for name in REMOTE if os.environ.get(name)]:
            raise ValueError(
                f'{remote[0]} is set, but each step reaches a Space exactly once only through the local file: unset it, and '
                f"send the run when it has ended: trackio.sync(project='{project}', space_id=...)"
            )
        import trackio

        self.project, self._trackio = project, trackio

    def connect(self, run: Run, key: str) -> Line | None:
        name = f'{run.name}-{key}'
        rows = self._trackio.SQLiteStorage.get_logs(self.project, name)
        config = {**run.config, 'run': {**run.facts, 'run folder': str(run.folder)}}
        self._tracked = self._trackio.init(
            project=self.project, name=name, resume='allow', config=config, embed=False, auto_log_cpu=False
        )
        lines = [Line(int(row['step']), any(key.startswith('eval/') for key in row)) for row in rows]
        return max(lines, default=None)

    def send(self, line: Line, values: Mapping[str, float]) -> None:
        self._tracked.log(dict(values), step=line.step)

    def send_pictures(self, line: Line, pictures: Mapping[str, Picture]) -> None:
        images = {name: self._trackio.Image(picture.image, caption=picture.caption) for name, picture in pictures.items()}
        self._tracked.log(images, step=line.step)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        for kind, files in self.artifacts(summary).items():
            artifact = self._trackio.Artifact(f'{kind}-{self._tracked.name}', type='model' if kind == 'weights' else kind)
            for file in files:
                artifact.add_file(str(file))
            self._tracked.log_artifact(artifact)
        self._tracked.finish()
