"""Tables as text for a terminal and as Markdown."""

from collections.abc import Mapping, Sequence

Row = Mapping[str, str]


def format_text(rows: Sequence[Row]) -> str:
    """Format rows as aligned columns, the first to the left, all others to the right."""
    columns = list(rows[0])
    lines = [columns, *([row[column] for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return '\n'.join(
        '  '.join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def format_markdown(rows: Sequence[Row]) -> str:
    head = list(rows[0])
    rule = ['---', *('---:' for _ in head[1:])]
    return '\n'.join(f'| {" | ".join(cells)} |' for cells in (head, rule, *([row[column] for column in head] for row in rows)))
