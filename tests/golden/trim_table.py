"""Copies from the folder of all golden numbers what the tests of tables use, thinned: python trim_table.py FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 4096
FACTS = ('input_shape', 'params', 'train_losses', 'train_losses_f64', 'grad_l2_all', 'optim_trace', 'eval_decode', 'eval_eos')
TABLES = ('c_teds', 'c_table_structure_metric', 'c_table_labels', 'c_table_decode')
DATA = Path(__file__).parent / 'data'


def main(folder: Path) -> None:
    model = json.loads((folder / 'ocr_index.json').read_text())['models']['slanet']
    all_facts = json.loads((folder / 'ocr_facts.json').read_text())
    facts: dict[str, Any] = {key: model[key] for key in FACTS} | {key: all_facts[key] for key in TABLES}
    facts['lr'] = all_facts['d_learning_rates']['configs/table/SLANet.yml']
    facts['noise'] = {key: entry['f32_noise_rel_to_max'] for key, entry in model['arrays'].items()}
    facts['images'] = all_facts['e_preprocess']['table']
    facts['strides'] = {}
    thinned = {}
    for key, array in np.load(folder / 'slanet.npz').items():
        step = -(-array.size // LIMIT)
        thinned[key] = array.reshape(-1)[::step] if step > 1 else array
        facts['strides'][key] = model['arrays'][key].get('stride', 1) * step
    pictures = np.load(folder / 'ocr_preprocess.npz')
    for case in facts['images']:
        key = case['resized']['array_key']
        thinned[key] = pictures[key]
    np.savez_compressed(DATA / 'slanet.npz', **thinned)
    (DATA / 'table.json').write_text(json.dumps(facts))


if __name__ == '__main__':
    main(Path(sys.argv[1]))
