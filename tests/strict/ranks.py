"""Training of two ranks on the CPU and on the strict device, for `test_steps.py`: python ranks.py RANK STORE, prints JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
from device import NAME, strict_device
from steps import FAMILIES, MODELS, PARTS, SEGMENTATION, SMALL, Training

from phalanx.engine.job import open_job

CASES = {
    'plain': (*SEGMENTATION, 'norm_sync=off'),
    'norms': (*SEGMENTATION, 'norm_sync=global'),
    'bf16': (*SEGMENTATION, 'gradients.compression=bf16'),
    'fp16': (*SEGMENTATION, 'gradients.compression=fp16'),
    **{name: FAMILIES[name] for name in ('detection', 'recognition', 'text_detection', 'table')},
    'dfine': MODELS['dfine'],
    'dfine_fixed_objects': PARTS['dfine_fixed_objects'],
}  # not power_sgd: the futures of gloo hold the CPU tensors, with which torch's hook then multiplies those of the device


def train(recipe: str, keys: list[str], device: torch.device) -> dict[str, Any]:
    """Losses of three steps, and waits of the last one."""
    job = open_job(recipe, [(key, key) for key in (*keys, *SMALL)])
    with tempfile.TemporaryDirectory() as folder:
        training = Training(job, device, Path(folder), is_bf16=False)
        waits = [training.step()['waits'] for _ in range(3)][-1]
        return {'losses': training.losses(), 'waits': waits}


def main() -> None:
    torch.set_num_threads(1)
    # gloo takes the tensors of the strict device for those of the CPU that they hold; a group with a backend of its own for the
    # device (`cpu:gloo,strict:gloo`) is refused by torch, which does not know the name.
    torch_dist.init_process_group('gloo', init_method=f'file://{sys.argv[2]}', rank=int(sys.argv[1]), world_size=2)
    found: dict[str, Any] = {}
    with strict_device() as strict:
        for case, (recipe, *keys) in CASES.items():
            found[case] = {kind.type: train(recipe, keys, kind) for kind in (strict, torch.device('cpu'))}
    assert NAME in found['plain']
    print(json.dumps(found))


if __name__ == '__main__':
    main()
