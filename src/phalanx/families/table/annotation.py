"""A table as it is annotated, and as a network says it, whatever the data set and the vocabulary."""

from dataclasses import dataclass

CELL_STARTS = ('<td>', '<td', '<td></td>')  # each stands for one cell: plain, the beginning of one with spans, merged


@dataclass(frozen=True, slots=True)
class Cell:
    """What is in a cell; one without text has no box."""

    text: tuple[str, ...] = ()  # characters, and tags such as <b> and </b>
    box: tuple[float, float, float, float] | None = None  # around the text, xyxy in pixels of the image
    corners: tuple[float, ...] | None = None  # where annotated: x, y of four corners, of which the box is that around them

    @property
    def quadrangle(self) -> tuple[float, ...] | None:
        """The corners (x, y) one after the other; those of the box, from the upper left clockwise, where none are annotated."""
        if self.corners is not None or self.box is None:
            return self.corners
        x0, y0, x1, y1 = self.box
        return (x0, y0, x1, y0, x1, y1, x0, y1)


@dataclass(frozen=True, slots=True)
class Table:
    """The structure of a table as HTML tokens, and its cells in the order in which their tokens come.

    Tokens are those of PubTabNet: tags without what spans add (`<tr>`, `</td>`), and for a cell with spans `<td`, one token for
    each span (` colspan="2"`), and `>`. Raises ValueError when there are not as many cells as tokens that begin one.
    """

    structure: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        begun = sum(token in CELL_STARTS for token in self.structure)
        if begun != len(self.cells):
            raise ValueError(f'the structure has {begun} cells, but {len(self.cells)} are described')

    @property
    def has_spans(self) -> bool:
        """Whether a cell spans several rows or columns: what PubTabNet calls a complex table."""
        return '<td' in self.structure

    @property
    def boxes(self) -> list[tuple[float, float, float, float]]:
        """The boxes of the cells that have one."""
        return [cell.box for cell in self.cells if cell.box is not None]
