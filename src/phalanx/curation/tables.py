"""Tables of a census for the terminal and the page; rows are {column: value}, all with the same columns."""

from collections import Counter
from itertools import islice, pairwise

from rich.console import Console
from rich.text import Text

from phalanx.curation.census import Census, Size
from phalanx.report.charts import nice_ticks
from phalanx.report.readable import pluralize, shorten_paths
from phalanx.report.terminal import make_table

Row = dict[str, str | int | float | None]
FEW = 12  # sizes that get a row each
PRINTED = 20  # classes (characters of texts) in the terminal; the page has all
SHOWN = 20  # problems, or groups of duplicates, that are shown


def class_rows(census: Census) -> list[Row]:
    """Units, share of all units, and number of images, per class and split."""
    totals = {name: split.units.total() for name, split in census.splits.items()}
    rows: list[Row] = []
    for kind in census.class_names():
        row: Row = {'class': kind}
        for name, split in census.splits.items():
            row[f'{name} {census.unit}'] = split.units[kind]
            row[f'{name} share'] = round(split.units[kind] / totals[name], 4) if totals[name] else None
            row[f'{name} images'] = split.images[kind]
        rows.append(row)
    return rows


def size_rows(census: Census) -> list[Row]:
    """Images per size or, if there are many sizes, per range of the longer side."""
    sizes = {name: split.sizes for name, split in census.splits.items()}
    together = sum(sizes.values(), Counter[Size]())
    groups: list[tuple[str, list[Size]]]
    # few sizes are listed, many are grouped into ranges with round limits
    if len(together) <= FEW:
        column, groups = 'size', [(f'{size[0]} x {size[1]}', [size]) for size, _ in together.most_common()]
    else:
        longest = [max(size) for size in together]
        edges = [int(tick) for tick in nice_ticks(min(longest), max(longest) + 1, about=10)]
        column = 'longer side'
        groups = [
            (f'{low} to {high - 1}', [size for size in together if low <= max(size) < high]) for low, high in pairwise(edges)
        ]
    # a count and a share per split in each row
    rows: list[Row] = []
    for label, members in groups:
        row: Row = {column: label}
        for name, counts in sizes.items():
            count = sum(counts[size] for size in members)
            row[f'{name} images'] = count
            row[f'{name} share'] = round(count / counts.total(), 4) if counts else None
        rows.append(row)
    return rows


def problem_rows(census: Census) -> list[Row]:
    """Problems with their counts and first samples."""
    return [
        {'problem': reason, 'samples': count, 'first': problem.name or problem.split}
        for reason, count, problem in census.reasons()[:SHOWN]
    ]


def duplicate_rows(census: Census) -> list[Row]:
    """Groups of equal images, one row each, without the folder that all have in common; those in both splits come first."""
    groups = sorted(census.duplicates, key=lambda group: -len({split for split, _ in group}))[:SHOWN]
    short = iter(shorten_paths([f'{name} ({split})' for group in groups for split, name in group]))
    rows: list[Row] = []
    for group in groups:
        names = list(islice(short, len(group)))
        more = f' and {len(names) - 4} more' if len(names) > 4 else ''
        rows.append({'equal images': len(names), 'they are': ', '.join(names[:4]) + more})
    return rows


def print_census(census: Census, console: Console) -> None:
    for title, rows in (
        ('classes' if len(class_rows(census)) <= PRINTED else f'the first {PRINTED} classes', class_rows(census)[:PRINTED]),
        ('sizes', size_rows(census)),
        ('problems', problem_rows(census)),
        ('duplicates', duplicate_rows(census)),
    ):
        if rows:
            console.print(make_table(rows, title, overflow='fold'))
    for remark in census.remarks():
        console.print(Text(f'remark: {remark}', style='yellow'), soft_wrap=True)
    console.print(summarize(census), soft_wrap=True)


def summarize(census: Census) -> str:
    """Summarize the census in a sentence."""
    wrong = sum(bool(problem.name) for problem in census.problems)
    limited = sum(split.samples for split in census.splits.values()) > census.read() + wrong
    read = f'{pluralize(census.read(), "sample")} can be used' + (' of those that were read' if limited else '')
    read += f', {wrong:,} cannot' if wrong else ''
    if len(census.problems) > wrong:  # of a split or of the recipe, not of a sample
        return f'{read}, but a training would fail: see the problems'
    if wrong:
        return read
    return f'{read}, but see the remarks' if census.remarks() else f'{read}, nothing is wrong'
