"""Copies from the folder of all golden numbers what the tests of recognition networks use: python trim_recognition.py FOLDER.

Arrays are thinned as in trim.py, and further.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 1024
MODELS = ('crnn_mv3', 'crnn_ch_lite', 'ppocrv3_rec', 'ppocrv3_distill')
FACTS = (
    'input_shape',
    'params',
    'alias_keys',
    'batch',
    'train_losses_f64',
    'grad_l2_all',
    'grad_mathematically_zero',
    'l2_regularizer',
    'optim_trace_f64_loss',
    'ctc_per_sample',
    'ctc_infeasible_case',
)
UNUSED = ('batch/', 'eval_extra/', 'eval/head_out_softmax', 'eval/ctc_softmax')
DATA = Path(__file__).parent / 'data'


def main(folder: Path) -> None:
    index = json.loads((folder / 'ocr_index.json').read_text())['models']
    facts: dict[str, Any] = {}
    for name in MODELS:
        facts[name] = {key: index[name][key] for key in FACTS if key in index[name]}
        facts[name]['lr'] = [step['lr'] for step in index[name]['optim_trace']]
        facts[name]['arrays'] = copy(folder, name, index[name]['arrays'])
    del facts['ppocrv3_distill']['params']  # those of ppocrv3_rec, twice
    (DATA / 'recognition_models.json').write_text(json.dumps(facts))


def copy(folder: Path, name: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Copies the used arrays of one file, and gives the shape, the stride and the float32 noise of each."""
    thinned, after = {}, {}
    for key, array in np.load(folder / f'{name}.npz').items():
        if not key.startswith(UNUSED):
            step = -(-array.size // LIMIT)
            thinned[key] = array.reshape(-1)[::step]
            entry = arrays[key]
            stride = entry.get('stride', 1) * step
            after[key] = {'shape': entry['shape'], 'stride': stride, 'noise': entry['f32_noise_rel_to_max']}
    np.savez_compressed(DATA / f'{name}.npz', **thinned)
    return after


if __name__ == '__main__':
    main(Path(sys.argv[1]))
