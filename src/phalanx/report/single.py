"""Result of a single evaluation, for the terminal and as a page."""

from pathlib import Path

from phalanx.families.figures import Matrix, Table
from phalanx.report.evaluation import Evaluation
from phalanx.report.figures import embed
from phalanx.report.page import render
from phalanx.report.readable import format_duration, format_number
from phalanx.report.terminal import align, make_table, terminal
from phalanx.system.disk import write_atomically

WORST_PRINTED, MISTAKES_PRINTED = 5, 5
PAGE_PICTURES = 60  # minimum number of pictures of worst samples on the page of `phalanx eval`


def print_evaluation(found: Evaluation) -> None:
    """Print the result of a single evaluation."""
    console = terminal()
    if found.table:
        console.print(make_table(found.table))
    for figure in found.figures:
        if isinstance(figure, Table):
            console.print(make_table(figure.rows))
    words = {name: format_number(value) for name, value in found.metrics.items()}
    words |= {'samples': format_number(found.samples), 'time': format_duration(found.seconds)}
    mistaken = '; '.join(line for figure in found.figures if isinstance(figure, Matrix) for line in describe_confusions(figure))
    words |= {'mistaken': mistaken} if mistaken else {}
    words |= {f'worst {place}': worst.caption for place, worst in enumerate(found.worst[:WORST_PRINTED], 1)}
    for line in align(words):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def describe_confusions(matrix: Matrix) -> list[str]:
    """Return the most frequent confusions of classes, in words."""
    names, size = matrix.names, range(len(matrix.names))
    pairs = sorted(((matrix.counts[t][p], t, p) for t in size for p in size if t != p and matrix.counts[t][p]), reverse=True)
    return [f'{names[t]} taken for {names[p]} ({format_number(count)} times)' for count, t, p in pairs[:MISTAKES_PRINTED]]


def write_evaluation(file: Path, title: str, weights: str, found: Evaluation) -> None:
    """Write the result of a single evaluation as a page. Raises OSError."""
    tiles = [(name, format_number(value), '') for name, value in found.metrics.items()]
    tiles += [('samples', format_number(found.samples), ''), ('time', format_duration(found.seconds), '')]
    file.parent.mkdir(parents=True, exist_ok=True)
    values = {'title': title, 'weights': weights, 'tiles': tiles, **embed(found.table, found.figures)}
    write_atomically(file, render('evaluation.html', values).encode())
