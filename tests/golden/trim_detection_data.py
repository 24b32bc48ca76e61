"""Copies from the folder of all golden numbers what the tests of preprocessing use: python trim_detection_data.py FOLDER."""

import sys
from pathlib import Path

import numpy as np

NAMES = ('image', 'out_ppyoloe_crn', 'out_ppyoloe_plus', 'scale_factor', 'gt_bbox')

if __name__ == '__main__':
    with np.load(Path(sys.argv[1]) / 'preprocess_det.npz') as arrays:
        np.savez_compressed(Path(__file__).parent / 'data/preprocess_det.npz', **{name: arrays[name] for name in NAMES})
