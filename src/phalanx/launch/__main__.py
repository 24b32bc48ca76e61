"""`python -m phalanx.launch`."""

import sys

from phalanx.__main__ import fleetrun

sys.exit(fleetrun())
