"""Weights & Biases."""

import math
import os
from collections.abc import Mapping
from typing import Any

from phalanx.report.trackers.delivery import Delivery, Line, flatten
from phalanx.report.trackers.interface import Picture, Run


class WandB(Delivery):
    """Run of Weights & Biases. Needs the package wandb; WANDB_MODE=offline keeps everything in the run folder.

    Its own step is twice ours, plus 1 for an evaluation, since it drops what is not above the last step. Charts are over
    `step`.
    """

    name, is_stored = 'wandb', False  # its process keeps some lines in memory, and is killed with this one

    def __init__(self, *, project: str = 'phalanx', weights: bool = False) -> None:
        super().__init__(weights=weights)
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
            config={**run.config, 'run': dict(run.facts)},
            settings=self._wandb.Settings(console='off', silent=True),
        )
        self._tracked.define_metric('step')
        self._tracked.define_metric('*', step_metric='step')
        # Offline, each start has a file of its own, which begins with what was not surely stored; `wandb sync` joins them.
        last = self._tracked.step - 1
        return Line(last // 2, last % 2 == 1) if last > 0 else None

    def send(self, line: Line, values: Mapping[str, float]) -> None:
        self._tracked.log({**values, 'step': line.step}, step=2 * line.step + line.is_evaluation)

    def send_pictures(self, line: Line, pictures: Mapping[str, Picture]) -> None:
        images = {name: self._wandb.Image(picture.image, caption=picture.caption) for name, picture in pictures.items()}
        self._tracked.log(images, step=2 * line.step + line.is_evaluation)  # into the same row

    def close(self, summary: Mapping[str, Any] | None) -> None:
        for name, value in flatten(summary or {}).items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._tracked.summary[f'summary/{name}'] = value
        for kind, files in self.artifacts(summary).items():
            artifact = self._wandb.Artifact(f'{kind}-{self._tracked.id}', type='model' if kind == 'weights' else kind)
            for file in files:
                artifact.add_file(str(file))
            self._tracked.log_artifact(artifact)
        self._tracked.finish(exit_code=0 if summary is not None else 1)
