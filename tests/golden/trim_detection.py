"""Copies what the tests of detection networks use from the folder of all golden numbers: python trim_detection.py FOLDER.

An array of more than LIMIT values keeps every stride-th one, in C order; the strides are stored beside it. Scores of assigned
anchors are kept without the axis of classes, on which all but one are zero.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LIMIT = 1024
TRAINED = ('det_ppyoloe_crn_s', 'det_ppyoloe_plus_crn_s')  # what is known of training; of the others evaluation only
EVALUATED = ('det_ppyoloe_crn_m', 'det_ppyoloe_crn_l', 'det_ppyoloe_crn_x')
OF_NMS = 'det_ppyoloe_crn_s'  # its first image, whole
FACTS = ('input_shape', 'num_classes', 'gain', 'gt', 'state', 'n_trainable', 'trainable_order', 'losses', 'losses_f64', 'traj')
EVAL = ('eval_scores', 'eval_dist', 'eval_boxes')
TRAIN = ('train_cls_logit', 'train_reg_logit', 'bn_after__', 'f64_grad_', 'f64_gradnorm_', 'f64_traj_')
EXACT = ('atss_assigned_', 'tal_assigned_', 'f64_gradnorm_', 'f64_traj_')
DATA = Path(__file__).parent / 'data'


def main(folder: Path) -> None:
    index = json.loads((folder / 'index_segdet.json').read_text())
    facts: dict[str, Any] = {'versions': index['versions'], 'models': {}}
    facts['weight_rule_check'] = [case for case in index['weight_rule_check'] if 'yolo_head' in case['name']]
    for name in (*TRAINED, *EVALUATED):
        model = index['models'][name]
        arrays = dict(np.load(folder / f'{name}.npz'))
        wanted = (*EVAL, *TRAIN, *EXACT) if name in TRAINED else EVAL[:2]
        kept, strides = {}, {}
        for key, array in arrays.items():
            if key.startswith(wanted) and key != 'eval_boxes_scaled':
                array = without_classes(array) if key.endswith('assigned_scores') else array
                step = 1 if key.startswith(EXACT) else -(-array.size // LIMIT)
                kept[key] = array.reshape(-1)[::step]
                strides[key] = model['arrays'][key].get('stride', 1) * step
        np.savez_compressed(DATA / f'{name}.npz', **kept)
        noise = {key: model['fp32_vs_fp64_noise'][key]['max_abs'] for key in kept if key in model['fp32_vs_fp64_noise']}
        facts['models'][name] = {key: model[key] for key in FACTS if key in model} | {'noise': noise, 'strides': strides}
    (DATA / 'detection_models.json').write_text(json.dumps(facts, separators=(',', ':')))
    nms = np.load(folder / f'{OF_NMS}.npz')
    np.savez_compressed(
        DATA / 'detection_nms.npz',
        boxes=nms['eval_boxes'].reshape(2, -1, 4)[0],
        scores=nms['eval_scores'].reshape(2, 80, -1)[0],
        kept=nms['eval_nms_bbox'].reshape(-1, 6)[: nms['eval_nms_num'][0]],  # class, score, x0, y0, x1, y1
    )


def without_classes(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:  # [B, A, K] -> [B, A]
    assert (np.count_nonzero(scores, axis=-1) <= 1).all()
    return scores.sum(-1)  # type: ignore[no-any-return]


if __name__ == '__main__':
    main(Path(sys.argv[1]))
