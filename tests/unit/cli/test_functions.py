"""`phalanx.train` and `phalanx.evaluate` in a program of somebody else: its events, stops, threads, children and groups."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as torch_dist
import yaml

import phalanx
from phalanx.cli.guest import parse_overrides
from phalanx.config.read import ConfigError
from phalanx.system.errors import RequestError, StoppedError
from phalanx.weights.checkpoint import Checkpoints, step_of
from running import TINY, losses, records

MORE = ('data.train_scenes=8', 'data.eval_scenes=2', 'train.global_batch_size=2', 'train.steps=2')
OVERRIDES: dict[str, Any] = {key: yaml.safe_load(value) for key, value in (word.split('=', 1) for word in (*TINY[2:], *MORE))}


def test_a_callback_gets_every_event_of_a_run(tmp_path: Path) -> None:
    events: list[Any] = []
    phalanx.train('pp_liteseg_digits', save_dir=tmp_path, overrides=OVERRIDES, callback=events.append)
    of_kind = {kind: [event for event in events if event['kind'] == kind] for kind in ('train', 'eval', 'saved')}
    assert [(event['step'], event['loss']) for event in of_kind['train']] == [*enumerate(losses(tmp_path), 1)]
    assert [event['mean_iou'] for event in of_kind['eval']] == [line['mean_iou'] for line in records(tmp_path, 'eval')]
    assert [event['step'] for event in of_kind['saved']] == [2]
    assert (events[0]['kind'], events[-1]['kind'], events[-1]['best_step']) == ('start', 'end', 2)


def test_a_callback_stops_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event['kind'] == 'train' and event['step'] == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError):
        phalanx.train('pp_liteseg_digits', save_dir=tmp_path, overrides={**OVERRIDES, 'train.steps': 9}, callback=stop)
    (saved,) = Checkpoints(tmp_path, keep=1).all()
    assert 1 <= step_of(saved) < 9


def test_wrong_overrides_are_reported_by_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^overrides\['train.stepps'\]: train.stepps: unknown key; did you mean 'steps'"):
        phalanx.train('pp_liteseg_digits', save_dir=tmp_path, overrides={'train.stepps': 2})


@pytest.mark.parametrize(
    ('arguments', 'problem'),
    [
        ({'overrides': ['train.steps=2']}, r"overrides: a dict such as {'train\.steps': 100} is expected, got \['train"),
        ({'overrides': {'train.steps=2': 2}}, r"overrides\['train\.steps=2'\]: a key is text such as train\.steps"),
        (
            {'overrides': {'optimizer.lr': {1}}},
            r"overrides\['optimizer\.lr'\]: a value is a number, text, list or dict, got {1}",
        ),
        ({'overrides': {**OVERRIDES, 'train.epochs': 1}}, r"\['train\.epochs'\]: train\.steps is given, too"),
        ({'gpus': 2}, r'gpus=2: give a list of the numbers of devices, such as \[0, 1\]'),
        ({'gpus': '0,1'}, r"gpus='0,1': give a list"),
        ({'nproc_per_node': '2'}, r"nproc_per_node='2': give the number of ranks"),
        ({'callback': 3}, 'callback is a function'),
        ({'stop': True}, 'stop a threading.Event'),
    ],
)
def test_wrong_arguments_are_named_before_anything_starts(arguments: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=problem):
        phalanx.train('pp_liteseg_digits', save_dir=tmp_path / 'run', **({'overrides': OVERRIDES} | arguments))
    assert not (tmp_path / 'run').exists()


def test_overrides_may_be_numbers_of_numpy_and_paths() -> None:
    given = {'train.seed': np.int64(3), 'optimizer.lr': np.float32(0.5), 'data.root': Path('a b'), 'x': np.array([1, 2])}
    texts = [text for text, _ in parse_overrides(given)]
    assert texts == ['train.seed=3', 'optimizer.lr=0.5', 'data.root="a b"', 'x=[1, 2]']


@pytest.fixture
def child() -> Iterator[multiprocessing.process.BaseProcess]:
    """Process that the program around a training has started."""
    process = multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,))
    process.start()
    yield process
    process.kill()
    process.join()


def test_a_run_in_a_thread_stops_on_request_and_leaves_the_program_as_it_was(
    tmp_path: Path, child: multiprocessing.process.BaseProcess
) -> None:
    def surroundings() -> list[object]:
        log = logging.getLogger('phalanx')
        handlers = [*map(signal.getsignal, signal.valid_signals())]
        kernels = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
        random = torch.get_rng_state().tolist()
        return [dict(os.environ), log.handlers, log.propagate, log.level, handlers, kernels, random]

    stop, errors, before = threading.Event(), list[Exception](), surroundings()

    def stop_at_the_first_step(event: Any) -> None:
        if event['kind'] == 'train':
            stop.set()
            with pytest.raises(RequestError, match=r'trains or evaluates already.*nproc_per_node=1'):
                phalanx.train('pp_liteseg_digits', save_dir=tmp_path / 'other', overrides=OVERRIDES)

    def work() -> None:
        try:
            phalanx.train(
                'pp_liteseg_digits',
                save_dir=tmp_path,
                overrides={**OVERRIDES, 'train.steps': 9},
                callback=stop_at_the_first_step,
                stop=stop,
            )
        except StoppedError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [str(error) for error in errors] == [f'stopped; the same call continues from there ({tmp_path})']
    (saved,) = Checkpoints(tmp_path, keep=1).all()
    assert 1 <= step_of(saved) < 9
    assert surroundings() == before
    assert child.is_alive()


def test_a_group_without_a_backend_for_the_cpu_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    torch_dist.init_process_group('cuda:gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        with pytest.raises(
            RequestError, match=r"has the backend cuda:gloo, and none for tensors on cpu: .*TorchConfig\(backend='gloo'\)"
        ):
            phalanx.train('pp_liteseg_digits', save_dir=tmp_path / 'run', overrides=OVERRIDES)
        assert torch_dist.is_initialized()
    finally:
        torch_dist.destroy_process_group()


def test_a_process_that_is_a_rank_starts_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('RANK', '1')
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(RequestError, match='this process is rank 1 of a run already: leave them out'):
        phalanx.train('pp_liteseg_digits', save_dir=tmp_path, overrides=OVERRIDES, nproc_per_node=2)


def test_one_of_several_nodes_does_not_train_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = {'NNODES': '2', 'NPROC_PER_NODE': '2', 'NODE_RANK': '0', 'MASTER_ADDR': '10.0.0.1', 'MASTER_PORT': '29500'}
    for name, value in node.items():
        monkeypatch.setenv(f'PET_{name}', value)
    with pytest.raises(RequestError, match=r'2 processes on 2 nodes.*would use this node alone.*phalanx launch SCRIPT'):
        phalanx.train('pp_liteseg_digits', save_dir=tmp_path, overrides=OVERRIDES)
    assert not (tmp_path / 'log').exists()
