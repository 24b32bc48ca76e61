"""Cells that were said, and cells that are there. Shapes: N cells said, M true cells that have a box."""

import numpy as np
import numpy.typing as npt
import torch

from phalanx.data.boxes import pairwise_iou
from phalanx.families.table.annotation import Table

Floats = npt.NDArray[np.float32]


def overlaps(boxes: Floats, truth: Table) -> Floats:
    """[N, M] the intersection over union of each box said with each true one."""
    true = torch.tensor(truth.boxes, dtype=torch.float32).view(-1, 4)
    return pairwise_iou(torch.from_numpy(boxes), true).numpy()


def num_found(iou: Floats, at_least: float = 0.5) -> int:
    """How many true cells are found; each said cell finds one at most, the pair that overlaps most comes first."""
    left, found = iou.copy(), 0
    while left.size and left.max() >= at_least:
        said, true = np.unravel_index(left.argmax(), left.shape)
        left[said], left[:, true] = -1, -1
        found += 1
    return found


def read_perfectly(boxes: Floats, iou: Floats, truth: Table) -> list[tuple[str, ...]]:
    """The text of each cell said, if every text of the picture were found and read without fault.

    A text goes to the cell whose box overlaps its own most; where none does, to the nearest, as PaddleOCR matches the lines
    of a text detector.
    """
    contents: list[tuple[str, ...]] = [()] * len(boxes)
    texts = [cell.text for cell in truth.cells if cell.box is not None]
    for true, text in enumerate(texts if contents else ()):
        said = int(iou[:, true].argmax())
        if iou[said, true] <= 0:
            said = int(np.abs(boxes - np.array(truth.boxes[true], np.float32)).sum(1).argmin())
        contents[said] += text
    return contents
