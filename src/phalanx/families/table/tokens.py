"""Structure tokens and their ids, as in PaddleOCR's TableLabelEncode. Shapes: L tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.data.tables import CELL_STARTS
from phalanx.families.table.annotation import Cell, Table
from phalanx.runtime.table import START

# Order of table_structure_dict.txt, the dictionary of the published SLANet: by frequency in PubTabNet.
PUBLISHED = (
    *('<thead>', '<tr>', '<td>', '</td>', '</tr>', '</thead>', '<tbody>', '</tbody>', '<td', ' colspan="5"', '>'),
    *(' colspan="2"', ' colspan="3"', ' rowspan="2"', ' colspan="4"', ' colspan="6"', ' rowspan="3"', ' colspan="9"'),
    *(' colspan="10"', ' colspan="7"', ' rowspan="4"', ' rowspan="5"', ' rowspan="9"', ' colspan="8"', ' rowspan="8"'),
    *(' rowspan="6"', ' rowspan="7"', ' rowspan="10"'),
)

# Order of table_structure_dict_ch.txt, the dictionary of the published SLANet_ch.
CHINESE = (
    *('<thead>', '</thead>', '<tbody>', '</tbody>', '<tr>', '</tr>', '<td>', '<td', '>', '</td>'),
    *(f' {span}="{count}"' for span in ('colspan', 'rowspan') for count in range(2, 21)),
)

# Tokens of empty cells by their content, as in TableMASTER (Ye et al., https://arxiv.org/abs/2105.01848).
EMPTY_CELLS = {
    (): '<eb></eb>',
    (' ',): '<eb1></eb1>',
    ('<b>', ' ', '</b>'): '<eb2></eb2>',
    ('\u2028', '\u2028'): '<eb3></eb3>',
    ('<sup>', ' ', '</sup>'): '<eb4></eb4>',
    ('<b>', '</b>'): '<eb5></eb5>',
    ('<i>', ' ', '</i>'): '<eb6></eb6>',
    ('<b>', '<i>', '</i>', '</b>'): '<eb7></eb7>',
    ('<b>', '<i>', ' ', '</i>', '</b>'): '<eb8></eb8>',
    ('<i>', '</i>'): '<eb9></eb9>',
    ('<b>', ' ', '\u2028', ' ', '\u2028', ' ', '</b>'): '<eb10></eb10>',
}
CELLS = frozenset((*CELL_STARTS, *EMPTY_CELLS.values()))  # tokens that stand for a cell


class Target(NamedTuple):
    """Training target of a table."""

    ids: npt.NDArray[np.int64]  # [L] token ids, from the start token to the end token
    boxes: npt.NDArray[np.float32]  # [L, 4] of the cells, xyxy relative to width and height, or [L, 8] corners; 0 without a box
    has_box: npt.NDArray[np.bool_]  # [L]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a network and their ids: the start token is first, the end token last.

    `merge_cells`: a cell without spans is one token, `<td></td>`, instead of `<td>` and `</td>`, for shorter sequences.
    `name_empty_cells`: cells without text have tokens of their own. `chinese`: the tokens of SLANet_ch, with spans up to 20.
    `corners`: cells are located by their four corners, not by boxes. `more`: spans that the data have besides, such as
    `colspan="11"`.
    """

    merge_cells: bool = True
    name_empty_cells: bool = False
    chinese: bool = False
    corners: bool = False
    more: tuple[str, ...] = ()

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        empty = EMPTY_CELLS.values() if self.name_empty_cells else ()
        return self.rows(CHINESE if self.chinese else PUBLISHED, *empty, *self.more)

    def rows(self, dictionary: Sequence[str], *added: str) -> tuple[str, ...]:
        """Tokens by the rows of a head that was trained with `dictionary`, in the order of PaddleOCR's TableLabelEncode."""
        known = dictionary
        if self.merge_cells:
            known = [*(token for token in dictionary if token not in ('<td>', '<td></td>')), '<td></td>']
        return ('sos', *map(_with_space, (*known, *added)), 'eos')

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    def __contains__(self, token: str) -> bool:
        return token in self._ids

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> int:
        """Id of the end token."""
        return len(self) - 1

    def length(self, structure: Sequence[str]) -> int:
        """Return the number of tokens of a structure after merging cells, which `max_length` limits."""
        # Each merged cell saves one token; empty tokens are dropped by `spell`.
        merged = structure.count('<td>') if self.merge_cells else 0
        return len(structure) - structure.count('') - merged

    def encode(self, table: Table, size: tuple[int, int]) -> Target:
        """Encode `table` in an image of `size` (height, width); unknown tokens are left out."""
        # Unknown tokens, for example colspan="25", cannot be predicted.
        known = [(token, cell) for token, cell in self.spell(table) if token in self._ids]
        ids = [START, *(self._ids[token] for token, _ in known), self.end]
        boxes = [None, *(self._place(cell) if cell is not None and cell.text else None for _, cell in known), None]
        H, W = size
        # Boxes without a cell are 0 and masked by `has_box`.
        shares = np.array([box or (0,) * self.coordinates for box in boxes], np.float32)
        shares /= np.array([W, H] * (self.coordinates // 2), np.float32)
        return Target(np.array(ids, np.int64), shares, np.array([box is not None for box in boxes]))

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a cell: 4 for a box, 8 for corners."""
        return 8 if self.corners else 4

    def _place(self, cell: Cell) -> tuple[float, ...] | None:
        return cell.quadrangle if self.corners else cell.box

    def spell(self, table: Table) -> Iterator[tuple[str, Cell | None]]:
        """Yield the tokens of `table` in the spelling of this vocabulary, each with the cell that it begins, or None."""
        cells, tokens = iter(table.cells), iter(table.structure)
        for token in tokens:
            cell = next(cells) if token in CELL_STARTS else None
            if self.merge_cells and token == '<td>':
                token = '<td></td>'
                next(tokens, None)  # its </td>
            if self.name_empty_cells and cell is not None and cell.box is None:
                token = EMPTY_CELLS.get(cell.text, EMPTY_CELLS[()])
            if token:
                yield _with_space(token), cell


def _with_space(token: str) -> str:
    """Return a token with the space before an attribute, which some files lack."""
    return f' {token}' if 'span' in token and not token.startswith(' ') else token
