"""A tracker of one's own: a table of all numbers, one line for each name and step, that a spreadsheet opens.

phalanx train --plugin examples/csv_tracker.py pp_liteseg_digits --set 'report.trackers=[tensorboard, csv]'
"""

import csv
from collections.abc import Mapping
from typing import Any

from phalanx.report.trackers import Run


class Csv:
    """The numbers of log lines and evaluations in the file `numbers.csv` of the run folder."""

    def __init__(self, *, delimiter: str = ',') -> None:
        self.delimiter = delimiter

    def start(self, run: Run) -> None:
        path = run.folder / 'numbers.csv'
        is_new = not path.exists()
        self.run, self.file = run, path.open('a', newline='')
        self.table = csv.writer(self.file, delimiter=self.delimiter)
        if is_new:
            self.table.writerow(['step', 'name', 'value'])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        # A run that was cut off repeats the steps since its checkpoint; this file has them already.
        self.table.writerows([step, name, value] for name, value in self.run.unlogged(step, values).items())
        self.file.flush()

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self.file.close()


PLUGIN = {'trackers': {'csv': Csv}}
