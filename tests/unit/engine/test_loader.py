"""The data stream: who reads what, and what happens to samples that cannot be read."""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.batch import split_evenly
from phalanx.data.samples import Draw, SampleError
from phalanx.engine.loader import (
    LONGEST_TMPDIR,
    BadSampleError,
    LoadedBatch,
    Loader,
    LoadingCancelledError,
    Stream,
    check_bad_samples,
    check_batch,
    epoch_order,
    evaluation_draws,
    receive_batches,
    worker_notes,
)
from phalanx.engine.worker import explain_faults
from phalanx.system.errors import RequestError
from running import run_fork

worlds = st.integers(1, 5)


@given(size=st.integers(1, 40), ranks=worlds, micro=st.integers(1, 3), extra=st.integers(0, 7), step=st.integers(0, 50))
def test_ranks_and_micro_batches_share_a_step_without_overlap_or_gap(
    size: int, ranks: int, micro: int, extra: int, step: int
) -> None:
    batch = ranks * micro + extra
    alone = Stream(size, batch, 1, 7, 0, 1).share(step)
    of_ranks = [Stream(size, batch, micro, 7, rank, ranks).share(step) for rank in range(ranks)]
    parts = [part for share in of_ranks for part in split_evenly(share, micro)]
    assert [draw for part in parts for draw in part] == alone
    assert all(parts)
    sizes = [len(share) for share in of_ranks]
    assert max(sizes) - min(sizes) <= 1


@given(size=st.integers(1, 40), batch=st.integers(1, 12), step=st.integers(0, 50))
def test_the_epoch_of_a_step_is_the_mean_over_its_samples_rounded_down(size: int, batch: int, step: int) -> None:
    stream = Stream(size, batch := min(batch, size), 1, 7, 0, 1)
    assert stream.epoch_of(step) == sum(draw.epoch for draw in stream.share(step)) // batch


@given(size=st.integers(1, 30), batch=st.integers(1, 12))
def test_an_epoch_holds_each_sample_once(size: int, batch: int) -> None:
    stream = Stream(size, batch, 1, 3, 0, 1)
    steps = -(-3 * size // batch)
    draws = [draw for step in range(steps) for draw in stream.share(step)]
    for epoch in range(2):
        assert sorted(draw.index for draw in draws if draw.epoch == epoch) == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_a_global_batch_too_small_for_its_ranks_is_refused_with_the_number_needed() -> None:
    with pytest.raises(ValueError, match='at least 6 samples'):
        Stream(100, 5, 2, 0, 0, 3)


def test_a_global_batch_larger_than_the_training_set_is_refused_with_the_largest_that_fits() -> None:
    check_batch(160, 160, ranks=1)
    with pytest.raises(RequestError, match=r'^train\.global_batch_size: a batch of 161 samples .* the 160 .* at most 160$'):
        check_batch(160, 161, ranks=1)
    with pytest.raises(RequestError, match=r'at most 160 \(train.batch_size_per_rank on 3 ranks: at most 53\)$'):
        check_batch(160, 162, ranks=3)


@given(size=st.integers(0, 40), ranks=worlds, batch=st.integers(1, 5))
def test_evaluation_reads_each_sample_on_exactly_one_rank(size: int, ranks: int, batch: int) -> None:
    seen = [draw.index for rank in range(ranks) for part in evaluation_draws(size, batch, 0, rank, ranks) for draw in part]
    assert sorted(seen) == list(range(size))


def test_thirteen_samples_on_four_ranks_are_thirteen() -> None:
    shares = [sum(len(part) for part in evaluation_draws(13, 2, 0, rank, 4)) for rank in range(4)]
    assert shares == [4, 3, 3, 3]


@dataclass
class Numbers:
    """Samples that are their own number; some cannot be read."""

    size: int
    broken: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, draw: Draw) -> int:
        if draw.index in self.broken:
            raise SampleError(f'{draw.index}.png: is broken')
        return draw.index

    def name(self, index: int) -> str:
        return f'{index}.png'


def collate(samples: Sequence[int]) -> torch.Tensor:
    return torch.tensor(samples)


def load(
    broken: tuple[int, ...], allowed: int, replace: bool = True, workers: int = 0
) -> tuple[list[list[int]], dict[int, str]]:
    loader = Loader(
        Numbers(6, broken),
        collate,
        workers=workers,
        bad_samples=allowed,
        device=torch.device('cpu'),
        replace=replace,  # type: ignore[arg-type]
    )
    draws = iter([[Draw(index, 0, 0, 0) for index in pair] for pair in ((0, 1), (2, 3), (4, 5))])
    return [batch.tolist() for batch in loader.batches(draws)], loader.bad  # type: ignore[attr-defined]


@pytest.mark.parametrize('workers', [0, 2])
def test_an_unreadable_training_sample_is_replaced_by_the_next_and_counted(workers: int) -> None:
    batches, bad = load((1, 5), allowed=2, workers=workers)
    assert batches == [[0, 2], [2, 3], [4, 0]]
    assert bad == {1: '1.png: is broken', 5: '5.png: is broken'}


def test_an_unreadable_evaluation_sample_is_left_out_and_counted() -> None:
    batches, bad = load((1, 2, 3), allowed=3, replace=False)
    assert batches == [[0], [4, 5]]
    assert len(bad) == 3


def test_a_sample_that_comes_under_several_numbers_counts_once() -> None:
    check_bad_samples({1: '1.png: is broken', 7: '1.png: is broken'}, 1)
    with pytest.raises(BadSampleError, match=r'2 samples cannot be used.*: 1\.png: is broken \(also 2\.png\)$'):
        check_bad_samples({1: '1.png: is broken', 7: '1.png: is broken', 2: '2.png: is broken'}, 1)


@pytest.mark.parametrize('workers', [0, 1])
def test_by_default_the_first_unreadable_sample_ends_the_run_with_its_path(workers: int) -> None:
    with pytest.raises(BadSampleError, match=r'1 sample cannot be used, the recipe allows 0.*3\.png: is broken'):
        load((3,), allowed=0, workers=workers)


@pytest.mark.parametrize('workers', [0, 1])
def test_an_exception_in_a_data_set_of_a_plugin_says_which_sample(workers: int) -> None:
    class Faulty(Numbers):
        def __getitem__(self, draw: Draw) -> int:
            return super().__getitem__(draw) if draw.index != 3 else int('three')

    draws = iter([[Draw(index, 0, 0, 0) for index in pair] for pair in ((0, 1), (2, 3))])
    options = {'workers': workers, 'bad_samples': 6, 'replace': True, 'device': torch.device('cpu')}
    loader = Loader(Faulty(6), collate, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='invalid literal') as caught:
        [*loader.batches(draws)]
    assert 'while reading 3.png' in ''.join(traceback.format_exception(caught.value))


def test_neighbours_that_name_one_unreadable_file_count_once_and_are_all_replaced() -> None:
    class Doubled(Numbers):
        def __getitem__(self, draw: Draw) -> int:
            if draw.index in (2, 3, 4):
                raise SampleError('the same.png: is broken')
            return draw.index

    loader = Loader(Doubled(6), collate, workers=0, bad_samples=1, device=torch.device('cpu'), replace=True)
    draws = iter([[Draw(index, 0, 0, 0)] for index in range(6)])
    assert [batch.item() for batch in loader.batches(draws)] == [0, 1, 5, 5, 5, 5]


def test_a_data_set_without_one_readable_sample_does_not_search_for_ever() -> None:
    with pytest.raises(BadSampleError):
        load((0, 1, 2, 3, 4, 5), allowed=5)


def test_more_workers_than_cores_are_told_in_one_line_and_not_by_torch(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: {0})
    told = 'train.workers: 2 per rank, but 1 core here: the rest helps only where reading waits for a disk or a network'
    assert (worker_notes(1), worker_notes(2)) == ([], [told])
    assert load((), allowed=0, workers=2) == ([[0, 1], [2, 3], [4, 5]], {})
    assert [str(warning.message) for warning in recwarn if 'fork' not in str(warning.message)] == []  # Python's own of 3.12


@pytest.mark.skipif(sys.platform != 'linux', reason='tells the processes that were forked from /proc')
def test_a_stop_does_not_end_workers_that_are_just_starting() -> None:
    """The rank needs them until it has saved. Here stops come all the time, so at every moment of the start."""
    over, forked = threading.Event(), Path(f'/proc/self/task/{threading.get_native_id()}/children')
    before = set(forked.read_text().split())

    def stop() -> None:
        while not over.wait(1e-4):
            for worker in set(forked.read_text().split()) - before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(worker), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        assert load((), allowed=0, workers=2) == ([[0, 1], [2, 3], [4, 5]], {})
    finally:
        over.set()
        stopping.join()


def test_stop_signals_reach_the_rank_again_after_its_workers_have_started() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    load((), allowed=0, workers=1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.skipif(sys.platform != 'linux', reason='other systems have no safe fork')
def test_workers_are_forks_also_where_python_starts_processes_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since 3.14 it does. Others import PyTorch again for each evaluation, and need a data set that can be pickled."""
    default = multiprocessing.context._default_context  # type: ignore[attr-defined]
    monkeypatch.setattr(default, '_actual_context', None)
    monkeypatch.setattr(default, '_default_context', multiprocessing.get_context('spawn'))
    monkeypatch.setattr(Numbers, '__reduce__', None)  # no pickle of it
    batches, _ = load((), allowed=0, workers=1)
    assert batches == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize('letters', [LONGEST_TMPDIR, LONGEST_TMPDIR + 1])
def test_workers_hand_over_all_batches_or_report_at_once_a_temporary_folder_of_too_long_a_name(
    letters: int, tmp_path: Path
) -> None:
    """One letter more, and Python would lose the batches without a word: a socket's path ends after 107."""
    with tempfile.TemporaryDirectory(dir='/tmp') as short:
        folder = Path(short) / ('x' * (letters - len(short) - 1))
        folder.mkdir()
        done = run_fork('import test_loader; print(test_loader.load((), allowed=0, workers=1))', tmp_path, TMPDIR=str(folder))
    if letters == LONGEST_TMPDIR:
        assert done.stdout.strip() == '([[0, 1], [2, 3], [4, 5]], {})'
    else:
        assert 'loader workers need a TMPDIR of at most 75 characters' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize('broken', [ConnectionResetError(104, 'Connection reset by peer'), EOFError()])
def test_a_connection_that_breaks_while_a_worker_hands_over_a_batch_means_that_it_is_gone(broken: Exception) -> None:
    """A killed worker is met so when it dies at that moment; else torch tells it, in words that begin alike."""

    def batches() -> Iterator[LoadedBatch]:
        yield LoadedBatch('the first', {})
        raise broken

    arriving = receive_batches(batches(), lambda: False)
    assert next(arriving).batch == 'the first'
    with pytest.raises(RuntimeError, match=r'^DataLoader worker is gone: (ConnectionResetError|EOFError)'):
        next(arriving)


@dataclass
class Raising(Numbers):
    """Samples of a data set with a fault of its own."""

    fault: Exception = field(default_factory=Exception)

    def __getitem__(self, draw: Draw) -> int:
        raise self.fault


@pytest.mark.parametrize('fault', [RuntimeError('no driver'), ConnectionResetError(104, 'no driver')])
def test_an_error_of_a_data_set_in_a_worker_is_told_as_it_is(fault: Exception) -> None:
    """Not as the death of the worker, for which memory would be blamed."""
    loader = Loader(Raising(4, fault=fault), collate, workers=1, bad_samples=0, device=torch.device('cpu'), replace=True)
    with pytest.raises(type(fault), match='no driver'), explain_faults():
        next(loader.batches(iter([[Draw(0, 0, 0, 0)]])))


class Slow(Numbers):
    """Samples that begin to be read, and never come; `begun` is a file that says so."""

    begun: Path

    def __getitem__(self, draw: Draw) -> int:
        self.begun.touch()
        threading.Event().wait()
        return 0


def test_a_batch_of_workers_that_nobody_wants_any_more_is_not_waited_for(tmp_path: Path) -> None:
    slow = Slow(4)
    slow.begun = tmp_path / 'begun'
    loader = Loader(slow, collate, workers=2, bad_samples=0, device=torch.device('cpu'), replace=True)
    loader.is_cancelled = slow.begun.exists
    handler = signal.getsignal(signal.SIGCHLD)
    try:
        with pytest.raises(LoadingCancelledError):
            next(loader.batches(iter([[Draw(0, 0, 0, 0)]])))
        # All children are killed, also workers that earlier tests have left, and torch's handler asks for those, too.
        for worker in multiprocessing.active_children():
            worker.join(60)  # seconds; on an idle node it is dead at once
            assert worker.exitcode is not None
    finally:
        signal.signal(signal.SIGCHLD, handler)


def test_a_batch_that_nobody_wants_any_more_is_read_no_further() -> None:
    read = []

    class Counted(Numbers):
        def __getitem__(self, draw: Draw) -> int:
            read.append(draw.index)
            return draw.index

    loader = Loader(Counted(6), collate, workers=0, bad_samples=0, device=torch.device('cpu'), replace=True)
    loader.is_cancelled = lambda: len(read) == 2
    with pytest.raises(LoadingCancelledError):
        next(loader.batches(iter([[Draw(index, 0, 0, 0) for index in range(6)]])))
    assert read == [0, 1]
