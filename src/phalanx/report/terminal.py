"""Console and tables shared by commands and runs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich import box
from rich.console import Console, OverflowMethod
from rich.table import Table
from rich.text import Text

from phalanx.report.readable import format_number

Item = TypeVar('Item')


class Terminal(Console):
    """Standard output that ignores a broken pipe: rich would end the thread that prints.

    Not needed after `system.output.keep_output`, but for callers of `phalanx.train`.
    """

    def on_broken_pipe(self) -> None:
        self.quiet = True


def terminal() -> Console:
    """Return the console; in a file, lines are not wrapped at 80 columns.

    FORCE_COLOR, which CI and Jupyter kernels set, only colours lines: a bar that draws over itself needs a terminal. In a
    notebook it writes text, too: rich would make each line an output of its own, of which Jupyter shows 50 per cell.
    """
    is_terminal = sys.stdout.isatty()
    return Terminal(width=None if is_terminal else 160, force_interactive=None if is_terminal else False, force_jupyter=False)


def track(items: Iterable[Item], about: str) -> Iterable[Item]:
    """Iterate over `items` with a bar on standard error, if that is a terminal, whatever FORCE_COLOR says."""
    from rich import progress  # here: a training has no such bar

    hidden = not sys.stderr.isatty()
    return progress.track(items, about, console=Console(stderr=True), transient=True, disable=hidden)


def make_table(rows: Sequence[Mapping[str, Any]], title: str = '', overflow: OverflowMethod = 'ellipsis') -> Table:
    """Return a table with the columns of the first row, texts left-aligned, numbers right-aligned. `overflow`: for long
    texts.
    """
    table = Table(box=box.SIMPLE_HEAD, header_style='bold', pad_edge=False, title=title, title_justify='left')
    for column, value in rows[0].items():
        table.add_column(Text(column), justify='left' if isinstance(value, str) else 'right', overflow=overflow)
    for row in rows:
        table.add_row(*(Text(format_number(row.get(column))) for column in rows[0]))
    return table


def align(pairs: Mapping[str, str]) -> list[Text]:
    """Return one line per pair, with aligned values."""
    width = max(map(len, pairs), default=0)
    return [Text.assemble((f'{key:<{width}}', 'dim'), '  ', value) for key, value in pairs.items()]
