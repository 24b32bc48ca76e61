"""Decoded pictures are kept for all processes of a node, change nothing, and leave nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from phalanx.data.cache import CacheOptions, PictureCache, check_room, create_cache, open_cache, read_cached, use_cache
from phalanx.data.image import read_image, read_labels
from phalanx.data.samples import Draw
from phalanx.engine.loader import Loader

SMALL = 0.001  # GiB, the least that an option may say: room for 80 pictures of 64 x 64


def picture(number: int, *shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(number).integers(0, 256, shape or (64, 64, 3), np.uint8)


@pytest.fixture(params=['in memory', 'on a disk'])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> PictureCache:
    return create_cache(CacheOptions(gib=SMALL, folder=None if request.param == 'in memory' else tmp_path))


def child(run: Callable[[], None]) -> int:
    """The exit of a forked process that runs `run`: its status, or minus the number of the signal."""
    process = multiprocessing.get_context('fork').Process(target=run)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def test_cached_pictures_are_unchanged(cache: PictureCache) -> None:
    """Images and label maps, of any size; what was never there is not found."""
    pictures = {'a': picture(0), 'labels a': picture(1, 33, 7), 'b': picture(2, 1, 200, 3)}
    for name, pixels in pictures.items():
        cache.put(name, pixels)
    for name, pixels in pictures.items():
        assert_array_equal(cache.get(name), pixels)
    assert cache.get('c') is None


def test_a_picture_cached_by_one_process_is_found_by_another(cache: PictureCache) -> None:
    """A forked one, as loader workers are, and one that got the handle, as other ranks and spawned workers do."""
    again = pickle.loads(pickle.dumps(cache))  # noqa: S301  # our own
    cache.put('a', picture(0))
    assert child(lambda: again.put('b', picture(1))) == 0
    for own in (cache, again):
        assert_array_equal(own.get('a'), picture(0))
        assert_array_equal(own.get('b'), picture(1))


def test_processes_that_write_at_once_do_not_mix_up_their_pictures(cache: PictureCache) -> None:
    def write(first: int) -> None:
        for number in range(first, first + 12):
            cache.put(str(number), picture(number, 40, 40))

    writers = [multiprocessing.get_context('fork').Process(target=write, args=(first,)) for first in (0, 6, 12, 0)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    for number in range(24):
        assert_array_equal(cache.get(str(number)), picture(number, 40, 40))


def test_a_full_cache_keeps_its_pictures_and_accepts_no_others(cache: PictureCache) -> None:
    size = os.fstat(cache._file).st_size
    for number in range(200):
        cache.put(str(number), picture(number))
    found = [number for number in range(200) if cache.get(str(number)) is not None]
    assert found == list(range(len(found)))  # those that came first
    assert 0.9 * size < len(found) * picture(0).nbytes < size
    assert_array_equal(cache.get(str(found[-1])), picture(found[-1]))
    assert os.fstat(cache._file).st_size == size
    cache.put('small', picture(0, 4, 4))
    assert_array_equal(cache.get('small'), picture(0, 4, 4))  # what still fits, does


def test_a_writer_that_is_killed_leaves_no_half_picture(cache: PictureCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL after half of the pixels. Others can write then, the same picture too."""
    write = os.pwrite

    def half(file: int, data: Any, place: int) -> int:
        if len(data) < 64:  # the header, a slot
            return write(file, data, place)
        write(file, data[:32], place)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def killed() -> None:
        monkeypatch.setattr(os, 'pwrite', half)
        cache.put('a', picture(0))

    assert child(killed) == -signal.SIGKILL
    assert cache.get('a') is None
    cache.put('a', picture(0))
    assert_array_equal(cache.get('a'), picture(0))


def test_a_picture_that_cannot_be_written_is_not_cached(cache: PictureCache) -> None:
    """A disk that is full after all; here, files must not grow beyond 64 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        for number in range(10):
            cache.put(str(number), picture(number))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    found = [cache.get(str(number)) for number in range(10)]
    assert_array_equal(found[0], picture(0))
    assert found[-1] is None


@pytest.mark.parametrize('where', ['in memory', 'on a disk'])
def test_a_cache_is_gone_with_the_last_process_that_uses_it(where: str, tmp_path: Path) -> None:
    def killed() -> None:
        create_cache(CacheOptions(gib=SMALL, folder=None if where == 'in memory' else tmp_path)).put('a', picture(0))
        os.kill(os.getpid(), signal.SIGKILL)

    before = set(Path('/dev/shm').iterdir())
    assert child(killed) == -signal.SIGKILL
    assert not list(tmp_path.iterdir())
    assert set(Path('/dev/shm').iterdir()) <= before


def test_a_handle_that_leads_to_another_file_is_refused(cache: PictureCache) -> None:
    """In another container the number of the process is another's."""
    path, device, inode = cache.handle
    with pytest.raises(OSError, match='must see each other in /proc'):
        open_cache((path, device, inode + 1))


def test_a_cache_that_does_not_fit_this_node_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'train.cache.gib: 1e\+06 GiB requested, but memory has only'):
        check_room(CacheOptions(gib=1e6))
    with pytest.raises(ValueError, match=r'GiB requested, but the disk of .* has only'):
        check_room(CacheOptions(gib=1e9, folder=tmp_path))
    with pytest.raises(ValueError, match=r'train\.cache\.folder: there is no folder'):
        check_room(CacheOptions(gib=SMALL, folder=tmp_path / 'absent'))
    check_room(CacheOptions(gib=SMALL))
    with pytest.raises(ValueError, match=r'gib must be at least 0\.001, got 0'):
        CacheOptions(gib=0)


def test_images_and_label_maps_are_decoded_once(cache: PictureCache, tmp_path: Path) -> None:
    """The file is gone at the second time. An image and a label map of one file are two things."""
    cv2.imwrite(str(tmp_path / 'a.png'), picture(0, 8, 8))
    plain = read_image(tmp_path / 'a.png'), read_labels(tmp_path / 'a.png')
    with use_cache(cache):
        assert_array_equal(read_image(tmp_path / 'a.png'), plain[0])
        assert_array_equal(read_labels(tmp_path / 'a.png'), plain[1])
        (tmp_path / 'a.png').unlink()
        read_image(tmp_path / 'a.png')[:] = 0  # a transform that writes into what it got
        assert_array_equal(read_image(tmp_path / 'a.png'), plain[0])
        assert_array_equal(read_labels(tmp_path / 'a.png'), plain[1])


def test_without_a_cache_every_picture_is_decoded_again() -> None:
    read: Iterator[Any] = iter([picture(0), picture(1)])
    assert_array_equal(read_cached('a', lambda: next(read)), picture(0))
    assert_array_equal(read_cached('a', lambda: next(read)), picture(1))


@dataclass(frozen=True)
class Files:
    """One image per file of a folder."""

    folder: Path

    notes = ()

    def __len__(self) -> int:
        return 4

    def name(self, index: int) -> str:
        return f'{index}.png'

    def __getitem__(self, draw: Draw) -> torch.Tensor:
        return torch.from_numpy(read_image(self.folder / self.name(draw.index)))


def stacked(samples: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(samples))


def test_loader_workers_share_one_cache(cache: PictureCache, tmp_path: Path) -> None:
    """Each image is drawn by one of two workers, then, its file gone, by the other one."""
    for number in range(4):
        cv2.imwrite(str(tmp_path / f'{number}.png'), picture(number))
    device = torch.device('cpu')
    loader: Loader[Any, Any] = Loader(
        Files(tmp_path), stacked, workers=2, bad_samples=0, device=device, replace=True, cache=cache
    )
    draws = [[Draw(index, 0, 0, 0)] for index in range(4)]
    first = list(loader.batches(iter(draws)))
    for number in range(4):
        (tmp_path / f'{number}.png').unlink()
    second = list(loader.batches(iter([draws[1], draws[0], draws[3], draws[2]])))
    assert [batch.tolist() for batch in second] == [first[index].tolist() for index in (1, 0, 3, 2)]
