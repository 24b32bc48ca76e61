"""Objects in unnamed files that the processes of a node share."""

from __future__ import annotations

import os

import numpy as np
import pytest

from phalanx.data.listed import Packed
from phalanx.system.shared import Shared, open_handle


def test_an_object_comes_back_with_its_arrays() -> None:
    value = {'names': Packed.of(['a', '', 'ü']), 'boxes': np.arange(6.0).reshape(2, 3), 'none': np.zeros(0, np.int64), 'x': 7}
    shared = Shared.of(value)
    assert shared is not None
    found = Shared.opened(shared.handle).load()
    assert [*found['names']] == ['a', '', 'ü'] and found['x'] == 7 and len(found['none']) == 0
    np.testing.assert_array_equal(found['boxes'], value['boxes'])


def test_arrays_are_mapped_not_copied() -> None:
    """An array that is loaded belongs to the file, and cannot be written to."""
    shared = Shared.of(np.zeros(10_000_000, np.uint8))
    assert shared is not None
    array = shared.load()
    assert not array.flags.owndata and not array.flags.writeable


def test_arrays_outlive_the_object_that_opened_them() -> None:
    shared = Shared.of(np.arange(1000))
    assert shared is not None
    array = shared.load()
    del shared
    assert array.sum() == 499_500


def test_what_cannot_be_pickled_is_not_shared() -> None:
    assert Shared.of([lambda: 1]) is None


def test_another_file_under_the_same_number_is_refused() -> None:
    shared = Shared.of('one')
    assert shared is not None
    path, device, inode = shared.handle
    with pytest.raises(OSError, match='must see each other'):
        open_handle((path, device, inode + 1), os.O_RDONLY)
