"""A census as rows for people, on the terminal and on the page: a row is {column: value}, the same columns in each."""

from collections import Counter
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from phalanx.curation.census import Census, Size
from phalanx.report.charts import nice_ticks
from phalanx.report.readable import pluralize
from phalanx.report.terminal import make_table

Row = dict[str, str | int | float | None]
FEW = 12  # sizes that are listed each by itself
SHOWN = 20  # problems, or groups of duplicates, that are shown


def class_rows(census: Census) -> list[Row]:
    """For each class and split: how many units it has, which share of all there are, and in how many images it is."""
    totals = {name: split.units.total() for name, split in census.splits.items()}
    rows: list[Row] = []
    for kind in census.class_names():
        row: Row = {'class': kind}
        for name, split in census.splits.items():
            row[f'{name} {census.unit}'] = split.units[kind]
            row[f'{name} share'] = split.units[kind] / totals[name] if totals[name] else None
            row[f'{name} images'] = split.images[kind]
        rows.append(row)
    return rows


def size_rows(census: Census) -> list[Row]:
    """How many images of each size there are; of the longer side, in steps, where sizes are many."""
    sizes = {name: split.sizes for name, split in census.splits.items()}
    together = sum(sizes.values(), Counter[Size]())
    groups: list[tuple[str, list[Size]]]
    if len(together) <= FEW:
        column, groups = 'size', [(f'{size[0]} x {size[1]}', [size]) for size, _ in together.most_common()]
    else:
        longest = [max(size) for size in together]
        edges = [int(tick) for tick in nice_ticks(min(longest), max(longest) + 1, about=10)]
        column = 'longer side'
        groups = [
            (f'{low} to {high - 1}', [size for size in together if low <= max(size) < high]) for low, high in pairwise(edges)
        ]
    rows: list[Row] = []
    for label, members in groups:
        row: Row = {column: label}
        for name, counts in sizes.items():
            count = sum(counts[size] for size in members)
            row[f'{name} images'] = count
            row[f'{name} share'] = count / counts.total() if counts else None
        rows.append(row)
    return rows


def problem_rows(census: Census) -> list[Row]:
    """What is wrong, how often, and where for the first time."""
    return [
        {'problem': reason, 'samples': count, 'first': problem.name or problem.split}
        for reason, count, problem in census.reasons()[:SHOWN]
    ]


def duplicate_rows(census: Census) -> list[Row]:
    """Equal images, a row for each group of them; those that two splits share come first."""
    groups = sorted(census.duplicates, key=lambda group: -len({split for split, _ in group}))
    rows: list[Row] = []
    for group in groups[:SHOWN]:
        names = [f'{name} ({split})' for split, name in group]
        more = f' and {len(names) - 4} more' if len(names) > 4 else ''
        rows.append({'equal images': len(names), 'they are': ', '.join(names[:4]) + more})
    return rows


def print_census(census: Census, console: Console) -> None:
    for title, rows in (
        ('classes', class_rows(census)),
        ('sizes', size_rows(census)),
        ('problems', problem_rows(census)),
        ('duplicates', duplicate_rows(census)),
    ):
        if rows:
            console.print(make_table(rows, title, overflow='fold'))
    for remark in census.remarks():
        console.print(Text(f'remark: {remark}', style='yellow'), soft_wrap=True)
    console.print(verdict(census), soft_wrap=True)


def verdict(census: Census) -> str:
    """What came out, in a sentence."""
    wrong = len(census.problems)
    limited = sum(split.samples for split in census.splits.values()) > census.read() + wrong
    read = f'{pluralize(census.read(), "sample")} can be used' + (' of those that were read' if limited else '')
    if wrong:
        return f'{read}, {wrong:,} cannot'
    return f'{read}, but see the remarks' if census.remarks() else f'{read}, nothing is wrong'
