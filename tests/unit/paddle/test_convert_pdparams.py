"""The reader of Paddle's weight files: what paddle.save writes is read, everything else is refused and nothing runs.

The forms are those of paddle/framework/io.py and io_utils.py (1.8 to 3.x): plain dicts of arrays, tensors as (name, array), the
tables of names and slices.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import tarfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.system.errors import CheckpointError
from phalanx.weights.finding import find
from phalanx.weights.matching import Weights
from phalanx.weights.reading import read_weights

WEIGHTS = {
    'conv.weight': np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2),
    'norm._mean': np.array([0.5, -1.0], np.float64),
    'half': np.array([1.5, 2.5], np.float16),
    'count': np.array(7, np.int64),
    'mask': np.array([True, False]),
    'empty': np.zeros((0, 3), np.float32),
}


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def written(path: Path, saved: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(saved, protocol))
    return path


def archived(path: Path, members: dict[str, bytes], mode: str = 'w:gz') -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def read_pdparams(path: Path) -> Weights:
    return read_weights(find(path)).weights


def check_equal(read: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(read) == list(expected)
    for name, array in expected.items():
        assert read[name].dtype == array.dtype and read[name].shape == array.shape
        np.testing.assert_array_equal(read[name], array)
        assert read[name].flags.writeable


@pytest.mark.parametrize('protocol', [2, 3, 4])
def test_a_dict_of_arrays_comes_back(tmp_path: Path, protocol: int) -> None:
    check_equal(read_pdparams(written(tmp_path / 'a.pdparams', WEIGHTS, protocol)), WEIGHTS)


@pytest.mark.parametrize('protocol', [2, 3, 4])
def test_an_ordered_dict_with_the_table_of_names_comes_back_without_it(tmp_path: Path, protocol: int) -> None:
    """The form of a state dict of paddle 1.8 and 2.0."""
    names = {name: f'parameter_{number}' for number, name in enumerate(WEIGHTS)}
    saved = OrderedDict({**WEIGHTS, 'StructuredToParameterName@@': names})
    check_equal(read_pdparams(written(tmp_path / 'a.pdparams', saved, protocol)), WEIGHTS)


@pytest.mark.parametrize('protocol', [2, 4])
def test_tensors_saved_as_name_and_array_come_back(tmp_path: Path, protocol: int) -> None:
    """The form of a tensor since paddle 2.1: a call of `tuple`."""
    saved = {name: Calls(tuple, (f'p_{name}', array)) for name, array in WEIGHTS.items()}
    check_equal(read_pdparams(written(tmp_path / 'a.pdparams', saved, protocol)), WEIGHTS)


def test_tensors_of_the_static_graph_come_back(tmp_path: Path) -> None:
    """The form of a LoDTensor: a call of `eval` with the string 'data'."""
    saved = {name: Calls(eval, 'data', {'data': array}) for name, array in WEIGHTS.items()}
    check_equal(read_pdparams(written(tmp_path / 'a.pdparams', saved)), WEIGHTS)


def test_slices_of_a_large_array_are_put_together(tmp_path: Path) -> None:
    """The slices of arrays above 1 GB in protocols 2 and 3; `@@.` and the number stand behind the name of a slice."""
    weight = WEIGHTS['conv.weight']
    parts = {f'conv.weight@@.{number}': part for number, part in enumerate(np.split(weight.flatten(), [10, 20]))}
    table = {'conv.weight': {'OriginShape': weight.shape, 'slices': list(parts)}}
    saved = {'count': WEIGHTS['count'], **parts, 'UnpackBigParamInfor@@': table}
    read = read_pdparams(written(tmp_path / 'a.pdparams', saved, 2))
    check_equal(read, {'count': WEIGHTS['count'], 'conv.weight': weight})


def test_the_model_is_taken_from_among_other_things(tmp_path: Path) -> None:
    saved = {'model': WEIGHTS, 'opt': {'LR_Scheduler': {'last_lr': 0.1}}, 'epoch': 100}
    check_equal(read_pdparams(written(tmp_path / 'a.pdparams', saved)), WEIGHTS)


def test_arrays_in_other_orders_come_back(tmp_path: Path) -> None:
    weight = WEIGHTS['conv.weight']
    saved = {'fortran': np.asfortranarray(weight), 'big': weight.astype('>f4')}
    check_equal(read_pdparams(written(tmp_path / 'a.pdparams', saved)), {'fortran': weight, 'big': weight})


def test_names_of_numpy_1_are_understood(tmp_path: Path) -> None:
    path = tmp_path / 'a.pdparams'
    text = pickle.dumps({'w': WEIGHTS['half']}, 2)
    path.write_bytes(text.replace(b'numpy._core.multiarray', b'numpy.core.multiarray'))
    check_equal(read_pdparams(path), {'w': WEIGHTS['half']})


def test_bytes_written_by_python_2_are_understood(tmp_path: Path) -> None:
    """Hand-written: SHORT_BINSTRING in place of bytes, and an OrderedDict that is called with its pairs."""
    array = (
        b'cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01bt'
        b'R(K\x01K\x02\x85cnumpy\ndtype\n(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb'
        b'\x89U\x08' + np.array([1.0, -2.0], '<f4').tobytes() + b'tb'
    )
    path = tmp_path / 'a.pdparams'
    path.write_bytes(b'\x80\x02ccollections\nOrderedDict\n(]](U\x01w' + array + b'eatR.')
    check_equal(read_pdparams(path), {'w': np.array([1.0, -2.0], np.float32)})


@pytest.mark.parametrize('mode', ['w', 'w:gz'])
def test_the_only_pdparams_of_an_archive_is_read(tmp_path: Path, mode: str) -> None:
    members = {'net/model.pdopt': b'x', 'net/._model.pdparams': b'of a Mac', 'net/model.pdparams': pickle.dumps(WEIGHTS, 4)}
    check_equal(read_pdparams(archived(tmp_path / 'net.tar', members, mode)), WEIGHTS)


def test_an_archive_writes_no_file(tmp_path: Path) -> None:
    archived(tmp_path / 'net.tar', {'../../escaped.pdparams': pickle.dumps(WEIGHTS, 4), '/tmp/other': b''})
    check_equal(read_pdparams(tmp_path / 'net.tar'), WEIGHTS)
    assert [file.name for file in tmp_path.iterdir()] == ['net.tar'] and not (tmp_path.parent / 'escaped.pdparams').exists()


@pytest.mark.parametrize(
    ('members', 'found'), [({'a/x.txt': b''}, 'none'), ({'a.pdparams': b'', 'b/b.pdparams': b''}, 'a.pdparams, b/b.pdparams')]
)
def test_an_archive_with_none_or_several_is_refused(tmp_path: Path, members: dict[str, bytes], found: str) -> None:
    with pytest.raises(CheckpointError, match=f'must hold one file of weights, holds {found};'):
        read_pdparams(archived(tmp_path / 'net.tar.gz', members))


MALICIOUS: dict[str, tuple[object, str]] = {
    'a command': (Calls(os.system, 'touch escaped'), 'posix.system'),
    'a command among weights': ({'w': WEIGHTS['half'], 'x': Calls(os.system, 'touch escaped')}, 'posix.system'),
    'a command in a tuple in a list': ({'w': [(Calls(os.system, 'touch escaped'),)]}, 'posix.system'),
    'an expression': ({'w': Calls(eval, '__import__("os").system("touch escaped")')}, 'evaluates'),
    'an expression with data': ({'w': Calls(eval, 'data.tofile("escaped")', {'data': WEIGHTS['half']})}, 'evaluates'),
    'a program': (Calls(exec, 'open("escaped", "w")'), 'builtins.exec'),
    'an import': (Calls(__import__, 'os'), 'builtins.__import__'),
    'an attribute': (Calls(getattr, 'x', 'upper'), 'builtins.getattr'),
    'a file': (Calls(open, 'escaped', 'w'), 'io.open'),
    'a class of our own': (Path('escaped'), 'pathlib.PosixPath'),
    'objects in an array': ({'w': np.array([Path('escaped')], object)}, "type 'O8'"),
    'a record': ({'w': np.zeros(2, [('a', 'f4')])}, "type 'V4'"),
    'a numpy scalar': ({'w': np.float32(1)}, 'numpy._core.multiarray.scalar'),
    'much memory': ({'w': Calls(bytes, 10**12)}, 'makes bytes'),
    'text': ({'w': 'x'}, "'w' is a value of type str"),
    'a list': ([WEIGHTS['half']], 'expected a dict of arrays'),
    'an empty dict': ({}, 'expected a dict of arrays'),
    'a key that is not a word': ({(1, 2): WEIGHTS['half']}, 'as a key'),
}


@pytest.mark.parametrize('name', MALICIOUS)
@pytest.mark.parametrize('protocol', [2, 4])
def test_what_weights_do_not_need_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    saved, message = MALICIOUS[name]
    path = written(tmp_path / 'paddle.pdparams', saved, protocol)
    with pytest.raises(CheckpointError) as caught:
        read_pdparams(path)
    message = message.replace('builtins.', '__builtin__.') if protocol == 2 and 'import__' not in message else message
    assert str(path) in str(caught.value) and message.rpartition('.')[2] in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ['paddle.pdparams']


def test_one_stored_array_under_many_names_is_refused(tmp_path: Path) -> None:
    """A file of some kilobytes that would become gigabytes."""
    array = np.zeros(1000, np.float32)
    saved = {f'w{number}': array for number in range(100)}
    with pytest.raises(CheckpointError, match='bytes claim to hold arrays of 400000'):
        read_pdparams(written(tmp_path / 'a.pdparams', saved))


BOMBS = {
    'a text that becomes bytes many times': b'('
    + b'c_codecs\nencode\n(X\xa0\x86\1\0'
    + b'x' * 100_000
    + b'q\x01X\x06\0\0\0latin1q\x02tq\x03R'
    + b'c_codecs\nencode\nh\x03R' * 10_000
    + b't.',
    'a list that becomes a dict many times': b'(]('
    + b''.join(b'X\x02\0\0\0%02dN\x86' % n for n in range(99))
    + b'e\x85q\x03'
    + b'ccollections\nOrderedDict\nh\x03R' * 10_000
    + b't.',
    'a key of tuples in tuples': b'})' + b'\x85' * 200_000 + b'Ns.',
    'a slice of tuples in tuples': b'}X\x15\0\0\0UnpackBigParamInfor@@}X\x01\0\0\0a}X\x06\0\0\0slices]('
    + b')'
    + b'\x85' * 200_000
    + b'essss.',
    'a place in the memo that is far away': b'Nr\xff\xff\xff\x7f.',
    'text that claims 2 GB': b'X\xff\xff\xff\x7fx',
    'bytes that claim 4 EB': b'\x8e' + b'\0' * 7 + b'\x40' + b'x',
    'lists in lists that double': b']' + b'q\x00(h\x00h\x00tq\x00' * 60 + b'.',
    'a type that doubles': b'cnumpy\ndtype\n]' + b'q\x00(h\x00h\x00tq\x00' * 60 + b'\x85R.',
    'a shape of endless numbers': b'}X\x01\0\0\0wcnumpy\nndarray\n)R(K\x01('
    + (b'\x8a\xff' + b'\x7f' * 255) * 5000
    + b'tcnumpy\ndtype\nX\x02\0\0\0f4\x85R\x89C\0tbs.',
}


@pytest.mark.parametrize('name', BOMBS)
def test_a_small_file_costs_little(tmp_path: Path, name: str) -> None:
    """The largest is a megabyte; 300 MB more than the process has are allowed."""
    path = tmp_path / 'a.pdparams'
    path.write_bytes(b'\x80\x02' + BOMBS[name])
    used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), limits[1]))
    begun = time.process_time()
    try:
        with pytest.raises(CheckpointError):
            read_pdparams(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.process_time() - begun < 20


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / 'a.tar.gz'
    path.write_bytes(gzip.compress(bytes(80 << 20), 9))
    with pytest.raises(CheckpointError, match='weights do not compress that well'):
        read_pdparams(path)


def test_protocol_5_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='is a pickle of protocol 5'):
        read_pdparams(written(tmp_path / 'a.pdparams', WEIGHTS, 5))


@pytest.mark.parametrize('content', [b'', b'PK\x03\x04zip', b'{"json": 1}', b'\x89HDF\r\n', bytes(600)])
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / 'a.pdparams'
    path.write_bytes(content)
    kind = 'zip archive' if content.startswith(b'PK') else r'file of paddle\.save'
    with pytest.raises(CheckpointError, match=rf'a\.pdparams: is not a complete {kind}'):
        read_pdparams(path)


def test_a_missing_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    """So that a command tells it as it tells a damaged checkpoint."""
    with pytest.raises(CheckpointError, match='there is no such file'):
        read_pdparams(tmp_path / 'a.pdparams')


@pytest.mark.parametrize('protocol', [2, 4])
@pytest.mark.parametrize('kind', ['pdparams', 'tar', 'tar.gz'])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, protocol: int, kind: str) -> None:
    """In the middle of its last array; an archive ends with padding, which nobody needs."""
    data = pickle.dumps(WEIGHTS, protocol)
    path = tmp_path / f'a.{kind}'
    whole = len(data)
    if kind != 'pdparams':
        archived(path, {'a.pdparams': data}, 'w' if kind == 'tar' else 'w:gz')
        data = path.read_bytes()
        whole = len(data) if kind == 'tar.gz' else 512 + whole
    for length in (1, whole // 2, whole - 20):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            read_pdparams(path)


GOOD = pickle.dumps({'w': WEIGHTS['half'], 'v': (1, [2], 'x')}, 4)


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=64), st.binary(max_size=64).map(lambda tail: b'\x80\x04' + tail)))
def test_any_bytes_are_refused_with_the_reason(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / 'any.pdparams'
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_pdparams(path)


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_give_weights_or_the_reason(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(GOOD)
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.getbasetemp() / 'changed.pdparams'
    path.write_bytes(content)
    try:
        arrays = read_pdparams(path)
    except CheckpointError:
        return
    assert all(isinstance(array, np.ndarray) for array in arrays.values())


@settings(max_examples=200)
@given(st.integers(0, 496), st.binary(min_size=1, max_size=16))
def test_a_changed_header_of_an_archive_gives_weights_or_the_reason(
    tmp_path_factory: pytest.TempPathFactory, place: int, change: bytes
) -> None:
    path = archived(tmp_path_factory.getbasetemp() / 'changed.tar', {'a.pdparams': pickle.dumps(WEIGHTS, 4)}, 'w')
    content = bytearray(path.read_bytes())
    content[place : place + len(change)] = change
    path.write_bytes(content)
    try:
        arrays = read_pdparams(path)
    except CheckpointError:
        return
    check_equal(arrays, WEIGHTS)
