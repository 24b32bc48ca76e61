"""A script for launchers that want one: `torchrun --nproc_per_node 2 tools/train.py -c RECIPE`."""

import sys

from phalanx.__main__ import main

if __name__ == '__main__':
    sys.exit(main(['train', *sys.argv[1:]]))
