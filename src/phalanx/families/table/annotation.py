"""Annotated or predicted tables, independent of data set and vocabulary."""

from dataclasses import dataclass

from phalanx.data.tables import CELL_STARTS


@dataclass(frozen=True, slots=True)
class Cell:
    """Text and box of a cell; a cell without text has no box."""

    text: tuple[str, ...] = ()  # characters, and tags such as <b> and </b>
    box: tuple[float, float, float, float] | None = None  # around the text, xyxy in pixels of the image
    corners: tuple[float, ...] | None = None  # x, y of four corners, if annotated; the box is their bounding box

    @property
    def quadrangle(self) -> tuple[float, ...] | None:
        """The four corners x, y, ...; by default those of the box, clockwise from the upper left."""
        if self.corners is not None or self.box is None:
            return self.corners
        x0, y0, x1, y1 = self.box
        return (x0, y0, x1, y0, x1, y1, x0, y1)


@dataclass(frozen=True, slots=True)
class Table:
    """Structure of a table as HTML tokens, and its cells in the order of their tokens.

    Tokens as in PubTabNet: tags (`<tr>`, `</td>`); a cell with spans is `<td`, one token per span (` colspan="2"`), and `>`.
    Raises ValueError unless there is one cell per token that begins a cell.
    """

    structure: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        # Boxes and texts are assigned to cells by order, so one cell too many would shift all later ones.
        begun = sum(token in CELL_STARTS for token in self.structure)
        if begun != len(self.cells):
            raise ValueError(f'the structure has {begun} cells, but {len(self.cells)} are described')

    @property
    def has_spans(self) -> bool:
        """True if a cell spans several rows or columns: a complex table in PubTabNet."""
        return '<td' in self.structure

    @property
    def boxes(self) -> list[tuple[float, float, float, float]]:
        """Boxes of the cells that have one."""
        return [cell.box for cell in self.cells if cell.box is not None]
