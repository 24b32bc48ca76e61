"""MLflow."""

import time
from collections.abc import Mapping
from typing import Any

from phalanx.report.trackers.delivery import Delivery, Line, flatten
from phalanx.report.trackers.interface import Picture, Run

LONGEST_PARAMETER = 500  # characters of a parameter in older stores
MOST_PARAMETERS = 100  # per call


class MLflow(Delivery):
    """Run of MLflow, on the server of MLFLOW_TRACKING_URI. Needs the package mlflow or mlflow-skinny."""

    name, is_stored = 'mlflow', True

    def __init__(self, *, experiment: str = 'phalanx', weights: bool = False) -> None:
        super().__init__(weights=weights)
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
        tags = {'phalanx_key': key, **run.facts, 'run folder': str(run.folder)}
        self._run_id = self._client.create_run(number, run_name=run.name, tags=tags).info.run_id
        parameters = [self._param(key, str(value)[:LONGEST_PARAMETER]) for key, value in flatten(run.config).items()]
        for begin in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[begin : begin + MOST_PARAMETERS])
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
        metrics = [self._metric(name, value, now, line.step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)  # stored as a whole, or not at all

    def send_pictures(self, line: Line, pictures: Mapping[str, Picture]) -> None:
        for name, picture in pictures.items():
            self._client.log_image(self._run_id, picture.image, key=name, step=line.step)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        for kind, files in self.artifacts(summary).items():
            for file in files:
                self._client.log_artifact(self._run_id, str(file), 'weights' if kind == 'weights' else None)
        self._client.set_terminated(self._run_id, 'KILLED' if summary is None else 'FINISHED')
