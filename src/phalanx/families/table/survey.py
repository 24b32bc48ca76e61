"""Cell statistics of table data sets, for `phalanx data check`."""

from collections import Counter
from dataclasses import dataclass

from phalanx.data.samples import Draw, FromSource, Image
from phalanx.families.table.annotation import CELL_STARTS
from phalanx.families.table.draw import draw_structure
from phalanx.families.table.tokens import Vocabulary

PLAIN, EMPTY, SPANNING = 'with text', 'empty', 'over several rows or columns'


@dataclass(frozen=True)
class CellSurvey(FromSource):
    """Untransformed tables of one split, counted in cells."""

    vocabulary: Vocabulary
    max_length: int
    class_names: tuple[str, ...] = (PLAIN, EMPTY, SPANNING)
    unit: str = 'cells'

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """Return the image and the number of cells per kind; cells with spans are one kind, empty or not.

        A table too long for training counts as one `(too long)`. Raises SampleError.
        """
        image, table = self.source.read(Draw(index))
        # Cells are in the order of their tokens.
        starts = [token for token in table.structure if token in CELL_STARTS]
        kinds = Counter(
            SPANNING if token == '<td' else PLAIN if cell.text else EMPTY
            for token, cell in zip(starts, table.cells, strict=True)
        )
        is_too_long = self.vocabulary.length(table.structure) > self.max_length
        return image, dict(kinds) | ({'(too long)': 1} if is_too_long else {})

    def picture(self, index: int) -> Image:
        """Return the image with its cells, and the structure drawn below it."""
        image, table = self.source.read(Draw(index))
        return draw_structure(image, table.boxes, table.structure)
