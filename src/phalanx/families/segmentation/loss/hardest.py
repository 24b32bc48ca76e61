"""Finding the hardest pixels of a whole step, however it is cut: `phalanx.parallel.hardest`."""

from phalanx.parallel.hardest import kth_largest as kth_largest
