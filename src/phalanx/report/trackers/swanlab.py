"""SwanLab."""

import os
from collections.abc import Mapping
from typing import Any

from phalanx.report.trackers.delivery import Delivery, Line
from phalanx.report.trackers.interface import Picture, Run


class SwanLab(Delivery):
    """Run of SwanLab. Needs the package swanlab; SWANLAB_MODE=offline keeps everything in the run folder.

    Lines are sent again that an earlier start may have lost; per metric, the service takes steps above its last one only.
    """

    name, is_stored = 'swanlab', False  # its thread keeps some lines in memory

    def __init__(self, *, project: str = 'phalanx', weights: bool = False) -> None:
        super().__init__(weights=weights)
        import swanlab

        self.project, self._swanlab = project, swanlab
        mode = os.environ.get('SWANLAB_MODE', 'online')
        if mode == 'online' and not (swanlab.Settings().api_key or os.environ.get('SWANLAB_API_KEY')):
            raise ValueError('not logged in: `swanlab login`, or set SWANLAB_API_KEY, or SWANLAB_MODE=offline')

    def connect(self, run: Run, key: str) -> Line | None:
        folder = run.folder / 'swanlab'
        folder.mkdir(exist_ok=True)
        self._tracked = self._swanlab.init(
            project=self.project,
            name=run.name,
            id=key,
            resume='allow',
            log_dir=str(folder),
            config={**run.config, 'run': dict(run.facts)},
            settings=self._swanlab.Settings(terminal={'proxy_type': 'none'}),  # the output of the run stays ours
        )
        return None

    def send(self, line: Line, values: Mapping[str, float]) -> None:
        self._tracked.log(dict(values), step=line.step)

    def send_pictures(self, line: Line, pictures: Mapping[str, Picture]) -> None:
        images = {name: self._swanlab.Image(picture.image, caption=picture.caption) for name, picture in pictures.items()}
        self._tracked.log(images, step=line.step)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        for files in self.artifacts(summary).values():
            for file in files:
                self._tracked.save(str(file), base_path=str(file.parent))
        self._tracked.finish(state='success' if summary is not None else 'aborted')
