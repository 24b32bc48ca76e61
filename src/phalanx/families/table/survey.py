"""Cell statistics of table data sets, for `phalanx data check`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.data.samples import Draw, FromSource, Image
from phalanx.data.tables import CELL_STARTS
from phalanx.families.table.draw import draw_structure
from phalanx.families.table.tokens import Vocabulary

PLAIN, EMPTY, SPANNING = 'with text', 'empty', 'over several rows or columns'
UNKNOWN, NESTED = '(not in the vocabulary)', '(within another cell)'
TOO_LONG = '(too long)'
NO_AREA, OUTSIDE = '(box with exchanged corners or without area)', '(box beyond the image)'


@dataclass(frozen=True)
class CellSurvey(FromSource):
    """Untransformed tables of one split, counted in cells."""

    vocabulary: Vocabulary
    max_length: int
    class_names: tuple[str, ...] = (PLAIN, EMPTY, SPANNING)
    unit: str = 'cells'

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """Return the image and the number of cells per kind; cells with spans are one kind, empty or not.

        A table too long for training counts as one `(too long)`; tokens and boxes that cannot be learned count by reason.
        Raises SampleError.
        """
        image, table = self.source.read(Draw(index))
        # Cells are in the order of their tokens.
        starts = [token for token in table.structure if token in CELL_STARTS]
        kinds = Counter(
            SPANNING if token == '<td' else PLAIN if cell.text else EMPTY
            for token, cell in zip(starts, table.cells, strict=True)
        )
        kinds.update(f'{UNKNOWN} {token.strip()}' for token, _ in self.vocabulary.spell(table) if token not in self.vocabulary)
        kinds[NESTED] = count_nested(table.structure)
        H, W = image.shape[:2]
        for x0, y0, x1, y1 in table.boxes:
            kinds[NO_AREA] += x1 <= x0 or y1 <= y0
            # Annotations may exceed the image by a pixel.
            kinds[OUTSIDE] += min(x0, y0, x1, y1) < -1 or max(x0, x1) > W + 1 or max(y0, y1) > H + 1
        is_too_long = self.vocabulary.length(table.structure) > self.max_length
        return image, dict(+kinds) | ({TOO_LONG: 1} if is_too_long else {})

    @property
    def cures(self) -> dict[str, str]:
        return {
            UNKNOWN: 'tables are learned without these tokens; add spans to `more_tokens`',
            NESTED: 'tables in cells cannot be predicted; take out their tags, or the tables that have them',
            NO_AREA: 'such places are learned as they are; write x0, y0, x1, y1 with x0 < x1 and y0 < y1',
            OUTSIDE: 'such places are learned as they are; check that boxes are in pixels of the image',
            TOO_LONG: 'they are not trained on; increase `max_length`',
        }

    def picture(self, index: int) -> Image:
        """Return the image with its cells, and the structure drawn below it."""
        image, table = self.source.read(Draw(index))
        return draw_structure(image, table.boxes, table.structure)


def count_nested(structure: Sequence[str]) -> int:
    """Count the cells that begin before the cell before them has ended."""
    nested, is_open = 0, False
    for token in structure:
        if token in CELL_STARTS:
            nested += is_open
            is_open = token != '<td></td>'
        elif token == '</td>':
            is_open = False
    return nested
