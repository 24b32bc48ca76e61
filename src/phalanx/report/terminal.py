"""What commands and runs share that print tables: the terminal, and how rows look there."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, OverflowMethod
from rich.table import Table
from rich.text import Text

from phalanx.report.readable import format_number


class Terminal(Console):
    """Standard output, of which printing raises nothing when its reader has ended: rich would end the thread that prints.

    A process that called `system.output.protect_output` needs no such care; that of somebody who calls `phalanx.train` does.
    """

    def on_broken_pipe(self) -> None:
        self.quiet = True


def terminal() -> Console:
    """The terminal; or a file, whose lines are not broken at 80 columns."""
    return Terminal(width=None if sys.stdout.isatty() else 160)


def make_table(rows: Sequence[Mapping[str, Any]], title: str = '', overflow: OverflowMethod = 'ellipsis') -> Table:
    """Rows with the columns of the first, texts to the left, numbers to the right. `overflow`: of what is too long."""
    table = Table(box=box.SIMPLE_HEAD, header_style='bold', pad_edge=False, title=title, title_justify='left')
    for column, value in rows[0].items():
        table.add_column(Text(column), justify='left' if isinstance(value, str) else 'right', overflow=overflow)
    for row in rows:
        table.add_row(*(Text(format_number(row.get(column))) for column in rows[0]))
    return table
