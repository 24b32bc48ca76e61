"""Properties that need a GPU: kernels of shared norms, steps that wait for nothing, half precision, resume, compile, export."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import phalanx
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.parallel import dist, norms
from phalanx.parallel.norms import BatchNorm2d
from phalanx.system.memory import AsyncCopy
from running import losses, run_here

CUDA = torch.device('cuda')
FAMILIES = {
    'segmentation': ('pp_liteseg_digits', 'data.size=[64,128]'),
    'detection': ('ppyoloe_digits',),
    'recognition': ('crnn_digits',),
    'table': ('slanet_rendered',),
    'text_detection': ('db_pages',),
}
SGD = {'name': 'sgd', 'lr': 0.01}  # AdamW makes full steps of gradients that are nothing but rounding
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def as_rank(rank: int, folder: Path) -> None:
    """Normalises a share of a batch as one of two ranks on one GPU, which talk over gloo."""
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': '2'}
    torch.distributed.init_process_group('gloo', init_method=f'file://{folder}/rendezvous', rank=rank, world_size=2)
    group = dist.new_group()
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        for layout in LAYOUTS:
            x, direction = (value[3 * rank : 3 + 2 * rank].to(memory_format=layout) for value in batch(dtype))
            norm = BatchNorm2d(8).to(CUDA)
            norms.share_statistics(norm, group)
            of_torch = nn.SyncBatchNorm(8, process_group=group).to(CUDA)
            found[f'{dtype} {layout}'] = [value.cpu() for value in passed(norm, x, direction)]
            found[f'{dtype} {layout}, SyncBatchNorm'] = [value.cpu() for value in passed(of_torch, x, direction)]
    torch.save(found, folder / str(rank))
    torch.distributed.destroy_process_group()


def batch(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Five maps far from mean 0, and the gradient of what comes of them."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(5, 8, 12, 10, generator=generator) * 2 + 4
    return maps.to(CUDA, dtype), torch.randn(5, 8, 12, 10, generator=generator).to(CUDA, dtype)


def passed(norm: nn.Module, x: Tensor, direction: Tensor) -> list[Tensor]:
    """Output, gradient of the input, and running statistics."""
    x = x.detach().requires_grad_()
    y = norm(x)
    y.backward(direction)
    assert x.grad is not None
    return [y.detach(), x.grad, *(buffer for buffer in norm.buffers() if buffer.is_floating_point())]


def test_norms_that_two_ranks_share_are_those_of_one_batch_by_torch(tmp_path: Path) -> None:
    """In both layouts and half precision, against torch's own batch norm in float32 on the CPU, and against SyncBatchNorm."""
    torch.multiprocessing.spawn(as_rank, (tmp_path,), nprocs=2)
    first, second = (torch.load(tmp_path / str(rank)) for rank in (0, 1))
    for dtype in (torch.float32, torch.bfloat16):
        x, direction = (value.float().cpu() for value in batch(dtype))
        expected = passed(nn.BatchNorm2d(8), x, direction)
        biased = 0.9 + 0.1 * x.var((0, 2, 3), correction=0)
        close = 1e-5 if dtype == torch.float32 else 0.02
        for layout in LAYOUTS:
            one, two = first[f'{dtype} {layout}'], second[f'{dtype} {layout}']
            for place in (0, 1):
                found = torch.cat([one[place], two[place]]).float()
                assert (found - expected[place]).norm() < close * expected[place].norm()
            for rank in (first, second):  # the same kernels of torch, but for the running variance
                for own, torchs in zip(
                    rank[f'{dtype} {layout}'][:3], rank[f'{dtype} {layout}, SyncBatchNorm'][:3], strict=True
                ):
                    torch.testing.assert_close(own, torchs, rtol=1e-5 if dtype == torch.float32 else 0.01, atol=1e-5)
            for rank in (one, two):
                torch.testing.assert_close(rank[2], expected[2], rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(rank[3], biased, rtol=1e-4, atol=1e-5)


def trainer_of(family: str, folder: Path, *sets: str) -> Trainer:
    recipe, *own = FAMILIES[family]
    job = open_job(recipe, [(text, text) for text in (*own, 'train.global_batch_size=4', 'train.workers=0', *sets)])
    return Trainer(job.recipe, job.task, folder=folder, device=CUDA)


def test_a_copy_to_the_host_has_the_values_of_its_beginning_whatever_is_queued_after_it() -> None:
    values, copies = torch.zeros(2**22, device=CUDA), []
    for _ in range(8):
        copies.append(AsyncCopy(values))
        values += 1
    for number, copy in enumerate(copies):
        assert copy.read().unique().tolist() == [number]


# torch's CTC loss reads the lengths of its texts on the host and copies them to the device, which it waits for.
WAITS = {'recognition': ['torch/nn/functional.py', 'torch/autograd/graph.py']}


@pytest.mark.parametrize('family', FAMILIES)
def test_the_host_waits_for_nothing_in_a_step_in_bf16_and_channels_last(family: str, tmp_path: Path) -> None:
    """Except in the CTC loss of recognition."""
    trainer = trainer_of(family, tmp_path, 'precision={dtype: bf16}', 'train.channels_last=true')
    batches = trainer.batches()
    for _ in range(2):  # memory is taken and kernels are chosen
        trainer.train_step(next(batches))
        trainer.progress.step += 1
    batch = next(batches)
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter('always')
        try:
            torch.cuda.set_sync_debug_mode('warn')
            trainer.train_step(batch)
        finally:
            torch.cuda.set_sync_debug_mode('default')
    places = [f'{wait.filename}:{wait.lineno}' for wait in waits if 'called a synchronizing' in str(wait.message)]
    assert [place for place in places if not any(name in place for name in WAITS.get(family, []))] == [], places


def test_a_step_that_overflows_in_fp16_is_skipped_and_the_scale_halved(tmp_path: Path) -> None:
    trainer = trainer_of('segmentation', tmp_path, 'precision={dtype: fp16}')
    before = [value.clone() for value in trainer.model.parameters()]
    hook = next(trainer.model.parameters()).register_hook(lambda gradient: gradient * torch.inf)
    trainer.train_step(next(trainer.batches()))
    hook.remove()
    assert trainer.precision.skipped == 1
    assert trainer.precision.scale == 2.0**15
    assert all(value.equal(own) for value, own in zip(trainer.model.parameters(), before, strict=True))


def train_as_rank(rank: int, folder: Path) -> None:
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': '2', 'LOCAL_RANK': '0'}
    torch.distributed.init_process_group('gloo', init_method=f'file://{folder}/rendezvous', rank=rank, world_size=2)
    train_two_steps(folder / 'two')
    torch.distributed.destroy_process_group()


def train_two_steps(folder: Path) -> None:
    overrides = {'device': 'cuda', 'data.size': [64, 128], 'train.steps': 2, 'report.every': 1, 'evaluate.enabled': False}
    overrides |= {'precision': {'tf32': False}, 'optimizer': SGD, 'schedule': {'name': 'constant', 'warmup_steps': 0}}
    phalanx.train('pp_liteseg_digits', save_dir=folder, overrides=overrides)


def test_two_ranks_that_share_a_gpu_over_gloo_have_the_losses_of_one(tmp_path: Path) -> None:
    """Of the first step and after it. NCCL takes one rank per device.

    Not of more steps: on a CPU, too, weights that differ by 1e-6 of their size change the loss of the third step by 6e-3.
    """
    torch.multiprocessing.spawn(train_as_rank, (tmp_path,), nprocs=2)
    train_two_steps(tmp_path / 'one')
    first, second = losses(tmp_path / 'one')
    assert losses(tmp_path / 'two') == [pytest.approx(first, rel=1e-5), pytest.approx(second, rel=3e-3)]


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal up to float32 rounding: some kernels add up in another order each time."""
    monkeypatch.chdir(tmp_path)
    recipe = (FAMILIES['segmentation'][0], '--set', FAMILIES['segmentation'][1], 'train.steps=4', 'evaluate.enabled=false')
    recipe += ('optimizer={name: sgd, lr: 0.01}', 'precision={tf32: false}')
    assert run_here('train', *recipe, 'report.every=1', 'device=cuda', '--save_dir', 'whole') == 0
    assert run_here('train', *recipe, 'report.every=1', 'device=cuda', 'train.until=2', '--save_dir', 'halves') == 0
    assert run_here('train', *recipe, 'report.every=1', 'device=cuda', '--save_dir', 'halves') == 0
    assert losses(tmp_path / 'halves') == pytest.approx(losses(tmp_path / 'whole'), rel=1e-3)


@pytest.mark.parametrize('setting', ['train.compile=true', 'train.cuda_graph=true'])
def test_a_compiled_or_graphed_network_has_the_losses_of_one_that_is_not(setting: str, tmp_path: Path) -> None:
    """Losses of two steps: see two ranks above."""
    found = []
    for sets in ((), (setting,)):
        trainer = trainer_of('segmentation', tmp_path, 'precision={tf32: false}', *sets)
        batches = trainer.batches()
        for _ in range(2):
            trainer.train_step(next(batches))
            trainer.progress.step += 1
        trainer.read_numbers(keep=0)
        found.append(torch.tensor(trainer.numbers.logged))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=3e-3, atol=1e-4)


def test_a_network_that_was_trained_on_a_gpu_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = (FAMILIES['segmentation'][0], '--set', FAMILIES['segmentation'][1], 'train.steps=2', 'report.pictures=0')
    assert run_here('train', *recipe, 'device=cuda', '--save_dir', 'run') == 0
    assert run_here('export', 'run', '--out', 'model.onnx') == 0
    assert (tmp_path / 'model.onnx').is_file()
