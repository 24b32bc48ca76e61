"""Copies from the folder of all golden numbers what tests of recognition's data use: python trim_recognition_data.py FOLDER.

That is encoding, decoding, metric and pre-processing, without examples in Chinese: their dictionary is not ours to ship.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / 'data'
OWN = ('none', 'en_space', 'en_nospace')  # dictionaries that are built in


def main(folder: Path) -> None:
    facts = json.loads((folder / 'ocr_facts.json').read_text())
    labels, preprocess = facts['a_labels'], facts['e_preprocess']
    kept = {
        'dictionaries': {name: labels[name]['num_classes'] for name in OWN},
        'encode': [example for example in labels['encode_examples'] if example['dict'] in OWN],
        'decode': [example for example in labels['decode_examples'] if example['dict'] in OWN],
        'metric': facts['b_rec_metric'],
        'resize': preprocess['rec_resize'],
        'concatenate': preprocess['rec_con_aug'],
    }
    (DATA / 'recognition_facts.json').write_text(json.dumps(kept, ensure_ascii=False))
    arrays = {key: array for key, array in np.load(folder / 'ocr_preprocess.npz').items() if key.startswith(('rec_', 'con_'))}
    np.savez_compressed(DATA / 'recognition_preprocess.npz', **arrays)


if __name__ == '__main__':
    main(Path(sys.argv[1]))
