"""A script that a launcher can be given, as people are used to: `python -m phalanx.launch --gpus 0,1 tools/train.py -c RECIPE`."""

import sys

from phalanx.cli import main

if __name__ == '__main__':
    sys.exit(main(['train', *sys.argv[1:]]))
