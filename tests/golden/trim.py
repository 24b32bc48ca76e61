"""Copies from the folder of all golden numbers what the tests use, thinned: python trim.py FOLDER.

An array of more than LIMIT values keeps every stride-th one, in C order; the strides are stored beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 4096
MODELS = (
    'seg_pp_liteseg_stdc1',
    'seg_pp_liteseg_stdc2',
    'seg_unet',
    'seg_ocrnet_hrnetw18',
    'seg_segformer_b0',
    'seg_deeplabv3p_xception65',
)
FACTS = ('input_shape', 'num_classes', 'gain', 'state', 'trainable_order', 'loss', 'traj', 'f64', 'ohem_small')
DATA = Path(__file__).parent / 'data'


def main(folder: Path) -> None:
    index = json.loads((folder / 'index_segdet.json').read_text())
    small = json.loads((folder / 'small_cases.json').read_text())
    facts: dict[str, Any] = {key: index[key] for key in ('versions', 'weight_rule_check', 'input_check')}
    facts['models'] = {}
    for name in MODELS:
        model = index['models'][name]
        noise = {array: values['max_abs'] for array, values in model['fp32_vs_fp64_noise'].items()}
        facts['models'][name] = {key: model[key] for key in FACTS if key in model} | {'noise': noise}
        before = {array: entry.get('stride', 1) for array, entry in model['arrays'].items()}
        facts['models'][name]['strides'] = copy(folder, name, before, lambda key: not key.startswith(('grad', 'traj')))
    facts['losses'] = {
        case: values['float64']['loss']
        for case, values in small['losses_seg']['values'].items()
        if isinstance(values, dict) and 'loss' in values['float64']  # the original fails in one case
    }
    copy_losses(folder)
    facts['metrics'] = small['metrics_seg']
    copy_whole(folder, 'metrics_seg', lambda key: True)
    copy_whole(folder, 'ops', lambda key: not key.startswith(('act_', 'conv_same_')))
    (DATA / 'segmentation.json').write_text(json.dumps(facts))


def copy(folder: Path, name: str, strides: dict[str, int], is_used: Callable[[str], bool]) -> dict[str, int]:
    """Copies the used arrays of one file, thinned further, and gives the strides they have now."""
    thinned, after = {}, {}
    for key, array in np.load(folder / f'{name}.npz').items():
        if is_used(key):
            step = -(-array.size // LIMIT)
            thinned[key] = array.reshape(-1)[::step]
            after[key] = strides[key] * step
    np.savez_compressed(DATA / f'{name}.npz', **thinned)
    return after


def copy_losses(folder: Path) -> None:
    """Copies the inputs whole, and of the gradients as many values as of other arrays."""
    arrays = dict(np.load(folder / 'losses_seg.npz'))
    step = -(-arrays['logits'].size // LIMIT)
    kept = {key: arrays[key] for key in ('logits', 'labels', 'class_weight')}
    kept |= {key: array.reshape(-1)[::step] for key, array in arrays.items() if key.startswith('f64_grad__')}
    np.savez_compressed(DATA / 'losses_seg.npz', **kept)


def copy_whole(folder: Path, name: str, is_used: Callable[[str], bool]) -> None:
    np.savez_compressed(
        DATA / f'{name}.npz', **{key: array for key, array in np.load(folder / f'{name}.npz').items() if is_used(key)}
    )


if __name__ == '__main__':
    main(Path(sys.argv[1]))
