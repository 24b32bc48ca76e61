"""Trainings on the CPU and on the strict device, for `test_steps.py`: python steps.py CASE ... -> a JSON object by case."""

from __future__ import annotations

import gc
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from device import NAME, recording, strict_device

from phalanx.config.read import to_plain
from phalanx.engine.evaluation import Setup, evaluate
from phalanx.engine.job import Job, open_job
from phalanx.engine.optim import OPTIMIZERS
from phalanx.engine.precision import Precision, PrecisionOptions
from phalanx.engine.progress import Progress
from phalanx.engine.shapes import Autocast
from phalanx.engine.trainer import Trainer
from phalanx.families.catalog import CATALOGS
from phalanx.families.detection.nms import Nms, multiclass_nms
from phalanx.weights.checkpoint import Checkpoints

SEGMENTATION, DETECTION = ('pp_liteseg_digits', 'data.size=[64,128]'), ('ppyoloe_digits',)
RECOGNITION, TEXT_DETECTION, TABLE = (
    ('crnn_digits',),
    ('db_pages', 'data.page_size=[96,96]'),
    ('slanet_rendered', 'image_size=64', 'max_length=100'),
)
FAMILIES = {
    'segmentation': SEGMENTATION,
    'detection': DETECTION,
    'recognition': RECOGNITION,
    'text_detection': TEXT_DETECTION,
    'table': TABLE,
}
ONE, TWO = 'loss=[cross_entropy]', 'loss=[cross_entropy, cross_entropy]'
LINES = ('image_size=[48,96]',)
MODELS = {
    'unet': (*SEGMENTATION, 'model={name: unet}', ONE),
    'ocrnet': (*SEGMENTATION, 'model={name: ocrnet, backbone: hrnet_w18}', TWO),
    'segformer': (*SEGMENTATION, 'model={name: segformer, backbone: mit_b0}', ONE),
    'deeplabv3p': (*SEGMENTATION, 'model={name: deeplabv3p, backbone: resnet50_vd}', ONE),
    'lraspp': (*SEGMENTATION, 'model={name: lraspp}', ONE),
    'dfine': (*DETECTION, 'model={name: dfine, queries: 20, decoder_layers: 2}', 'loss=[dfine]'),
    'deimv2': (*DETECTION, 'model={name: deimv2, size: atto, queries: 20, decoder_layers: 2}', 'loss=[rtdetr]'),
    'rtdetr': (*DETECTION, 'model={name: rtdetr, queries: 20, decoder_layers: 2}', 'loss=[rtdetr]'),
    'rtdetrv2': (*DETECTION, 'model={name: rtdetrv2, queries: 20, decoder_layers: 2}', 'loss=[rtdetr]'),
    'svtr_lcnet': (*RECOGNITION, *LINES, 'model={name: svtr_lcnet}', 'loss=[multi]'),
    'svtr_lcnetv3': (*RECOGNITION, *LINES, 'model={name: svtr_lcnetv3, nrtr_size: 32}', 'loss=[ctc, nrtr]'),
    'conv_lcnetv4': (*RECOGNITION, *LINES, 'model={name: conv_lcnetv4}', 'loss=[ctc]'),
    'svtr_lcnetv4': (*RECOGNITION, *LINES, 'model={name: svtr_lcnetv4, nrtr_size: 32}', 'loss=[ctc, nrtr]'),
}
TOP_K = '{name: cross_entropy, top_k: 0.5}'
TEACHER = 'networks={teacher: {name: pp_liteseg}}'
OPTIONS = {
    'micro_batches': ('train.micro_batches=2',),
    'whole_step': (f'loss=[{TOP_K}, {TOP_K}, {TOP_K}]', 'train.micro_batches=2'),
    'channels_last': ('train.channels_last=true',),
    'freeze': ('train.freeze=[backbone]',),
    'layer_rates': ('parameters={rules: [{match: backbone.*, lr_factor: 0.1}]}',),
    'clip': ('clip={norm: 0.1}',),
    'ema': ('ema={decay: 0.9, kind: ramp}',),
    'distillation': (TEACHER, 'between=[{name: dml, output: "0", classes: 1}]'),
    'bf16': ('precision.dtype=bf16',),
    'fp16': ('precision.dtype=fp16',),
    'fp16_constant': ('precision={dtype: fp16, loss_scale: 128}',),
    'class_weights': ('loss.0={name: cross_entropy, class_weights: [1,2,1,1,1,1,1,1,1,1,1]}',),
    'mixture': ('data={name: mixture, parts: [{name: digit_scenes, size: [64,128]}, {name: digit_scenes, size: [64,128]}]}',),
}
UNET = (*SEGMENTATION, 'model={name: unet}')
TERMS = (*DETECTION, 'loss_coefficients=[1, 2.5, 0.5]')
NO_DECAY = 'parameters={decay_norms: false, decay_biases: false}'
# Besides FAMILIES, MODELS and OPTIONS: every other loss, optimizer and assigner, and what else a step depends on.
PARTS = {
    'ohem': (*UNET, 'loss=[{name: ohem, min_kept_per_sample: 1000}]'),
    'dice': (*UNET, 'loss=[dice]'),
    'lovasz': (*UNET, 'loss=[lovasz]'),
    'rmi': (*UNET, 'loss=[rmi]'),
    'mixed': (*UNET, 'loss=[{name: mixed, losses: [cross_entropy, semantic_connectivity], coefficients: [1, 0.1]}]'),
    'feature_distance': (*SEGMENTATION, TEACHER, 'between=[{name: feature_distance, output: "0"}]'),
    'lars': (*SEGMENTATION, 'optimizer={name: lars, lr: 0.1}', NO_DECAY),
    'lamb': (*SEGMENTATION, 'optimizer={name: lamb, lr: 0.001}', NO_DECAY),
    'adam': (*SEGMENTATION, 'optimizer={name: adam, lr: 0.001}'),
    'adamw': (*SEGMENTATION, 'optimizer={name: adamw, lr: 0.001}'),
    'per_tensor': (*SEGMENTATION, 'clip={norm: 0.1, per_tensor: true}'),
    'freeze_steps': (*SEGMENTATION, 'train.freeze=[backbone]', 'train.freeze_steps=1'),
    'frozen_norms': (*SEGMENTATION, 'norm_sync=frozen'),
    'layer_decay': (*SEGMENTATION, 'parameters={layer_decay: {factor: 0.9, layers: [backbone.*]}}'),
    'segmentation_windows': (
        *SEGMENTATION,
        'inference={window: [32,64], window_stride: [16,32], scales: [1.0, 1.5], flip_horizontal: true}',
    ),
    'varifocal': (*TERMS, 'loss=[varifocal, giou, dfl]', 'assigner=atss'),
    'quality_focal': (*TERMS, 'loss=[quality_focal, giou, dfl]', 'assigner=atss_then_task_aligned'),
    'from_teacher': (*DETECTION, 'networks={teacher: {name: ppyoloe}}', 'from_teacher=[logits, features]'),
    'detection_windows': (*DETECTION, 'inference={window: [96,96], window_stride: [64,64], flip_horizontal: true}'),
    **{f'{name}_fixed_objects': (*MODELS[name], 'fixed_objects=10') for name in ('dfine', 'deimv2', 'rtdetr', 'rtdetrv2')},
    'sar': (*RECOGNITION, *LINES, 'model={name: svtr_lcnet}', 'loss=[ctc, sar]'),
    'fixed_length': (*TABLE, 'fixed_length=true', 'loss=[structure, smooth_l1]'),
    'l1': (*TABLE, 'loss=[structure, l1]'),
}
SMALL = ('train.global_batch_size=4', 'train.workers=0', 'evaluate.batch_size=2')
SETS = {'segmentation': 'scenes', 'detection': 'scenes', 'recognition': 'lines', 'text_detection': 'pages', 'table': 'tables'}
CASES = {
    name: (*keys, f'data.eval_{SETS[next(family for family in FAMILIES if keys[0] == FAMILIES[family][0])]}=4')
    for name, keys in (FAMILIES | MODELS | PARTS).items()
}
CASES |= {name: (*SEGMENTATION, *keys) for name, keys in OPTIONS.items()}
PREDICTING = {*FAMILIES, *MODELS, 'segmentation_windows', 'detection_windows'}  # cases whose evaluation is run, too


class ImitatedAutocast(Precision):
    """Autocast of CUDA by a list of its operations, on both devices: torch has none for devices in Python."""

    def __init__(self) -> None:
        super().__init__(PrecisionOptions(), torch.device('cpu'))

    @contextmanager
    def autocast(self) -> Iterator[None]:
        with Autocast(torch.bfloat16):
            yield


class Training:
    """A Trainer and its batches, one step at a time."""

    def __init__(self, job: Job, device: torch.device, folder: Path, *, is_bf16: bool, resumes: bool = False) -> None:
        checkpoint = Checkpoints(folder, keep=1).newest()[0] if resumes else None
        progress = Progress.of(checkpoint.state, checkpoint.step) if checkpoint is not None else None
        self.trainer = trainer = Trainer(job.recipe, job.task, folder=folder, device=device, progress=progress)
        if is_bf16:
            trainer.precision = trainer.passes.precision = ImitatedAutocast()
        if checkpoint is not None:
            trainer.restore(checkpoint)
        self.batches = trainer.batches()

    def step(self) -> dict[str, Any]:
        """Waits and copies of a step."""
        batch = next(self.batches)
        with recording() as record:
            self.trainer.train_step(batch)
        self.trainer.progress.step += 1
        return vars(record)

    def losses(self) -> list[list[float]]:
        self.trainer.read_numbers(keep=0)
        return self.trainer.numbers.logged


def living_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def train(case: str, device: torch.device) -> dict[str, Any]:
    """Losses of three steps, on the strict device also of the last one after a resume; what the last step makes the host do."""
    recipe, *keys = CASES[case]
    # fp16 is the scaling of the loss, by powers of two, so the values are fp32's; bf16 is imitated.
    is_bf16 = case == 'bf16'
    keys = [key for key in keys if (not is_bf16 and device.type == NAME) or not key.startswith('precision')]
    job = open_job(recipe, [(key, key) for key in (*keys, *SMALL)])
    with tempfile.TemporaryDirectory() as folder:
        training = Training(job, device, Path(folder), is_bf16=is_bf16)
        trainer = training.trainer
        for _ in range(2):
            training.step()
        trainer.read_numbers(keep=1)
        before = living_tensors()
        if device.type == NAME:
            trainer.save(best=False)
            trainer.saver.finish(trainer.progress, trainer.report)
        found = training.step()
        found |= {'growth': living_tensors() - before, 'losses': training.losses()}
        if device.type == NAME:
            resumed = Training(job, device, Path(folder), is_bf16=is_bf16, resumes=True)
            resumed.step()
            found['resumed'] = resumed.losses()
        return {**found, **predict(job, trainer, device)} if case in PREDICTING else found


def predict(job: Job, trainer: Trainer, device: torch.device) -> dict[str, Any]:
    """Metrics of an evaluation, results of a prediction, and how often the host waits for each."""
    setup = Setup(job.recipe, device, trainer.precision)
    with recording() as evaluated:
        metrics = evaluate(job.task, trainer.model, setup, trainer.evalset).metrics
    samples = [trainer.evalset[draw] for draw in trainer.stream.share(0)[:2]]
    with recording() as predicted, torch.no_grad():
        batch = job.task.collate(samples).to(device)
        results = job.task.results(job.task.predict(trainer.model, batch), batch)
    return {
        'metrics': repr(metrics),
        'evaluation': evaluated.waits,
        'prediction': predicted.waits,
        'copies of prediction': predicted.copies,
        'found': str(results)[:3000],
        'results': hashlib.sha256(
            repr([each.tolist() if hasattr(each, 'tolist') else each for each in results]).encode()
        ).hexdigest(),
    }


def untested() -> list[str]:
    """Models, losses, assigners and optimizers that no case names."""
    found = []
    for family, catalogs in CATALOGS.items():
        of_family = [keys for keys in CASES.values() if keys[0] == FAMILIES[family][0]]
        words = {word for keys in of_family for key in keys for word in re.findall(r'\w+', key)}
        words |= set(re.findall(r'\w+', repr(to_plain(open_job(FAMILIES[family][0], []).resolved))))
        kinds = ('models', 'losses', 'assigners', 'teacher_losses')
        found += [name for kind in kinds for name in catalogs.get(kind, {}) if name not in words]
    words = {word for keys in CASES.values() for word in re.findall(r'\w+', ' '.join(keys))}
    return [*found, *(name for name in OPTIMIZERS if name not in words | {'sgd'})]


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


def suppress(device: torch.device) -> dict[str, Any]:
    """Boxes after suppression on the host and on `device`, with few candidates and with more than it sends at once."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(2, 3000, 2, generator=generator) * 500
    boxes, scores = torch.cat([centres, centres + 30], 2), torch.rand(2, 3000, 3, generator=generator)
    found: dict[str, Any] = {}
    for name, threshold in (('few', 0.9), ('many', 0.01)):
        nms = Nms(score_threshold=threshold)
        with recording() as record:
            there = multiclass_nms(boxes.to(device, non_blocking=True), scores.to(device, non_blocking=True), nms)
        pairs = zip(there, multiclass_nms(boxes, scores, nms), strict=True)
        equal = all(part.equal(own) for image in pairs for part, own in zip(*image, strict=True))
        found[name] = {'equal': equal, 'boxes': len(there[0][0]), 'waits': len(record.waits)}
    return found


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what is there already is not looked at again in each count of tensors
    found: dict[str, dict[str, Any]] = {}
    with strict_device() as strict:
        found['misuse'], found['suppression'] = misuse(strict), suppress(strict)
        if set(PARTS) & set(sys.argv):
            found['untested'] = {'parts': untested()}
        for case in sys.argv[1:]:
            found[case] = {**train(case, strict), 'cpu': train(case, torch.device('cpu'))}
    print(json.dumps(found))


if __name__ == '__main__':
    main()
