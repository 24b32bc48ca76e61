"""Training steps on the CPU and on the strict device, for `test_steps.py`: python steps.py CASE ... -> a JSON object by case.

A process of its own: torch makes the queues of its autograd engine for the devices that it knows at the first backward pass.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from device import NAME, recording, strict_device

from phalanx.engine.evaluation import Setup, evaluate
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer

FAMILIES = {
    'segmentation': ('pp_liteseg_digits', 'data.size=[64,128]'),
    'detection': ('ppyoloe_digits',),
    'recognition': ('crnn_digits',),
    'text_detection': ('db_pages', 'data.page_size=[96,96]'),
    'table': ('slanet_rendered', 'image_size=64'),
}
TOP_K = '{name: cross_entropy, top_k: 0.5}'
OPTIONS = {
    'micro_batches': ('train.micro_batches=2',),
    'whole_step': (f'loss=[{TOP_K}, {TOP_K}, {TOP_K}]', 'train.micro_batches=2'),
    'channels_last': ('train.channels_last=true',),
    'freeze': ('train.freeze=[backbone]',),
    'layer_rates': ('parameters={rules: [{match: backbone.*, lr_factor: 0.1}]}',),
    'clip': ('clip={norm: 0.1}',),
    'ema': ('ema={decay: 0.9, kind: ramp}',),
    'fp16': ('precision.dtype=fp16',),
    'fp16_constant': ('precision={dtype: fp16, loss_scale: 128}',),
    'segformer': ('model={name: segformer, backbone: mit_b0}', 'loss=[cross_entropy]'),
}
SMALL = ('train.global_batch_size=4', 'train.workers=0', 'evaluate.batch_size=2')
SETS = {'segmentation': 'scenes', 'detection': 'scenes', 'recognition': 'lines', 'text_detection': 'pages', 'table': 'tables'}
CASES = {name: (*keys, f'data.eval_{SETS[name]}=4') for name, keys in FAMILIES.items()}
CASES |= {name: (*FAMILIES['segmentation'], *keys) for name, keys in OPTIONS.items()}


def train(case: str, device: torch.device) -> dict[str, Any]:
    """Loss terms of three steps and what the third makes the host do; of a family, metrics and waits of an evaluation, too."""
    recipe, *keys = CASES[case]
    # torch has no autocast for devices in Python: fp16 is the scaling of the loss, by powers of two, so the values are fp32's.
    keys = [key for key in keys if device.type == NAME or not key.startswith('precision')]
    job = open_job(recipe, [(key, key) for key in (*keys, *SMALL)])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(job.recipe, job.task, folder=Path(folder), device=device)
        batches = trainer.batches()
        for _ in range(2):
            trainer.train_step(next(batches))
            trainer.progress.step += 1
        batch = next(batches)
        with recording() as record:
            trainer.train_step(batch)
        trainer.read_numbers(keep=0)
        losses = trainer.numbers.logged
        if case not in FAMILIES:
            return {'losses': losses, **vars(record)}
        setup = Setup(job.recipe, device, trainer.precision)
        evaluate(job.task, trainer.model, setup, trainer.evalset)  # constants reach the device once
        with recording() as evaluated:
            metrics = evaluate(job.task, trainer.model, setup, trainer.evalset).metrics
        return {'losses': losses, **vars(record), 'metrics': repr(metrics), 'evaluation': evaluated.waits}


def misuse(device: torch.device) -> dict[str, Any]:
    """Reactions of the device to operations that would fail or wait on a GPU."""
    there, here = torch.ones(3).to(device), torch.ones(3)
    try:
        _ = there + here
        refusal = ''
    except RuntimeError as error:
        refusal = str(error)
    with recording() as record:
        there.sum().item()
        there.nonzero()
        here.to(device)
        here.to(device, non_blocking=True)
        there.to('cpu')
        torch.tensor([1.0, 2.0], device=device)
    return {'refusal': refusal, 'sum': float((there + there).sum()), **vars(record)}


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    with strict_device() as strict:
        found['misuse'] = misuse(strict)
        for case in sys.argv[1:]:
            found[case] = {**train(case, strict), 'cpu': train(case, torch.device('cpu'))}
    print(json.dumps(found))


if __name__ == '__main__':
    main()
