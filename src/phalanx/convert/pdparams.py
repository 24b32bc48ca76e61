"""Reads weight files of Paddle: `.pdparams`, and `.tar` or `.tar.gz` that hold one. Nothing that stands in them is run.

A `.pdparams` is a pickle, that is a program for a small machine, and Python's own machine imports and calls whatever the
program names. The machine here knows the opcodes that build plain values and the few constructions that `paddle.save` needs
(CONSTRUCTIONS); anything else is refused by its name.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.checkpoint import CheckpointError
from phalanx.weights.archives import ArchiveError, is_archive, only_weights

Array = npt.NDArray[Any]

NAME_TABLE = 'StructuredToParameterName@@'  # parameter names of the static graph, beside the arrays
SPLIT_TABLE = 'UnpackBigParamInfor@@'  # which arrays were cut into slices, because pickles of protocol 2 and 3 end at 4 GB
DTYPES = ('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8')
LARGEST_PROTOCOL = 4  # the largest that paddle.save takes


class PdparamsError(CheckpointError):
    """A weight file of Paddle that is damaged, or holds what weights do not need; says which file and what."""


class RefusedError(Exception):
    """What is wrong, without the name of the file."""


def read_pdparams(path: Path) -> dict[str, Array]:
    """{name: array} as `paddle.save` wrote it, from a `.pdparams` or from the only one in a `.tar` or `.tar.gz`.

    A file with a dict `model` among other things (an optimizer's state, say) gives what is in there. Raises PdparamsError.
    """
    try:
        data = path.read_bytes()
        return arrays_in(only_weights(data) if is_archive(data) else data)
    except OSError as error:
        raise PdparamsError(f'{path}: cannot be read: {error.strerror}') from None
    except (RefusedError, ArchiveError) as error:
        raise PdparamsError(f'{path}: {error}') from None


def arrays_in(data: bytes) -> dict[str, Array]:
    """As `read_pdparams`, from the bytes of a `.pdparams`. Raises RefusedError."""
    return _arrays(_Machine(data).run(), len(data))


def _arrays(saved: object, size: int) -> dict[str, Array]:
    """The arrays of what was saved, slices put together, the names of the static graph left out."""
    if isinstance(saved, dict) and isinstance(saved.get('model'), dict):
        saved = saved['model']
    if not isinstance(saved, dict) or not saved:
        raise RefusedError(f'expected a dict of arrays, got {_kind(saved)}')
    saved = {name: value for name, value in saved.items() if name != NAME_TABLE}
    slices = saved.pop(SPLIT_TABLE, {})
    arrays = {name: _array(name, value) for name, value in saved.items()}
    if not isinstance(slices, dict):
        raise RefusedError(f'{SPLIT_TABLE} is {_kind(slices)}')
    for name, facts in slices.items():
        arrays[name] = _joined(name, facts, arrays)
    if (total := sum(array.nbytes for array in arrays.values())) > size:  # one stored array under many names
        raise RefusedError(f'{size} bytes claim to hold arrays of {total}')
    return arrays


def _array(name: str, value: object) -> Array:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):  # (name in the static graph, array)
        value = value[1]
    if not isinstance(value, _StoredArray) or value.array is None:
        raise RefusedError(f'{name!r} is {_kind(value)}, not an array')
    return value.array


def _joined(name: str, facts: object, arrays: dict[str, Array]) -> Array:
    """The array whose slices stand in `arrays`, from where they are taken out."""
    match facts:
        case {'OriginShape': tuple() as shape, 'slices': list() as parts}:
            try:
                return np.concatenate([arrays.pop(part) for part in parts]).reshape(shape)
            except (KeyError, TypeError, ValueError) as error:
                raise RefusedError(f'the slices of {name!r} do not make an array: {error}') from None
    raise RefusedError(f'{SPLIT_TABLE} of {name!r} is {_kind(facts)}')


@dataclass
class _StoredType:
    """What stands for a numpy dtype while the machine runs."""

    code: str
    order: str = '='


@dataclass
class _StoredArray:
    """What stands for a numpy array: made empty, filled by BUILD."""

    array: Array | None = None


@dataclass(frozen=True)
class _Name:
    """A class or function that the program names; nothing is looked up."""

    name: str


class _Machine:
    """Runs a pickle program to the plain value it builds."""

    def __init__(self, data: bytes) -> None:
        self.program = io.BytesIO(data)
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}
        self.allowance = len(data)  # bytes that arrays may still take: what a file claims, it must hold

    def run(self) -> object:
        try:
            for opcode, argument, _ in pickletools.genops(self.program):
                if opcode.name == 'STOP':
                    return self.pop()
                self.step(opcode.name, argument)
        except ValueError as error:  # from genops: unknown opcodes, an end in the middle
            raise RefusedError(f'is no whole file of paddle.save: {error}') from None
        raise AssertionError('genops ends with STOP or raises')

    def step(self, opcode: str, argument: Any) -> None:
        match opcode:
            case 'PROTO':
                if argument > LARGEST_PROTOCOL:
                    raise RefusedError(f'is a pickle of protocol {argument}; paddle.save writes 2 to {LARGEST_PROTOCOL}')
            case 'FRAME':
                pass
            case 'MARK':
                self.marks.append(len(self.stack))
            case 'BINPUT' | 'LONG_BINPUT':
                self.memo[argument] = self.top()
            case 'MEMOIZE':
                self.memo[len(self.memo)] = self.top()
            case 'BINGET' | 'LONG_BINGET':
                if argument not in self.memo:
                    raise RefusedError(f'refers to a value {argument} that it did not build')
                self.stack.append(self.memo[argument])
            case 'APPEND':
                self.append([self.pop()])
            case 'APPENDS':
                self.append(self.since_mark())
            case 'SETITEM':
                value, key = self.pop(), self.pop()
                self.set_items([key, value])
            case 'SETITEMS':
                self.set_items(self.since_mark())
            case 'BUILD':
                state = self.pop()
                self.build(self.top(), state)
            case _:
                self.stack.append(self.made(opcode, argument))

    def made(self, opcode: str, argument: Any) -> Any:
        """The value that an opcode puts on the stack."""
        match opcode:
            case 'NONE' | 'NEWTRUE' | 'NEWFALSE':
                return {'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False}[opcode]
            case 'BININT' | 'BININT1' | 'BININT2' | 'LONG1' | 'BINFLOAT':
                return argument
            case 'BINUNICODE' | 'SHORT_BINUNICODE' | 'BINUNICODE8' | 'BINBYTES' | 'SHORT_BINBYTES' | 'BINBYTES8':
                return argument
            case 'BINSTRING' | 'SHORT_BINSTRING':  # Python 2: bytes, which genops gives as Latin-1 text
                return argument
            case 'EMPTY_LIST':
                return []
            case 'EMPTY_DICT':
                return {}
            case 'EMPTY_TUPLE':
                return ()
            case 'TUPLE':
                return tuple(self.since_mark())
            case 'TUPLE1' | 'TUPLE2' | 'TUPLE3':
                return tuple(reversed([self.pop() for _ in range(int(opcode[-1]))]))
            case 'GLOBAL':
                return _named(argument.replace(' ', '.', 1))
            case 'STACK_GLOBAL':
                name, module = self.pop(), self.pop()
                return _named(f'{module}.{name}')
            case 'REDUCE':
                arguments, called = self.pop(), self.pop()
                if not isinstance(called, _Name) or not isinstance(arguments, tuple):
                    raise RefusedError(f'calls {_kind(called)}')
                return CONSTRUCTIONS[called.name](arguments)
        raise RefusedError(f'uses the opcode {opcode}, which weights do not need')

    def pop(self) -> Any:
        self.top()
        return self.stack.pop()

    def top(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise RefusedError('is no whole file of paddle.save: a value is missing')
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        """What was put on the stack since the last mark, taken off."""
        if not self.marks:
            raise RefusedError('is no whole file of paddle.save: a mark is missing')
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def append(self, items: list[Any]) -> None:
        if not isinstance(self.top(), list):
            raise RefusedError(f'appends to {_kind(self.top())}')
        self.top().extend(items)

    def set_items(self, items: list[Any]) -> None:
        if not isinstance(self.top(), dict) or len(items) % 2:
            raise RefusedError(f'sets items of {_kind(self.top())}')
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.top()[_key(key)] = value

    def build(self, made: object, state: object) -> None:
        """Gives a dtype its byte order, an array its shape, type and data, as their `__setstate__` would."""
        match made, state:
            case _StoredType(), (3 | 4, '<' | '>' | '|' | '=' as order, None, None, None, -1, -1, 0, *_):
                made.order = order
            case _StoredArray(array=None), (1, tuple() as shape, _StoredType() as dtype, bool() | 0 | 1 as fortran, data):
                made.array = _filled(shape, dtype, bool(fortran), data)
                self.allowance -= made.array.nbytes
                if self.allowance < 0:
                    raise RefusedError('claims to hold more bytes in arrays than it has')
            case _:
                raise RefusedError(f'sets a state of {_kind(made)} that paddle.save does not write')


def _filled(shape: tuple[Any, ...], dtype: _StoredType, fortran: bool, data: object) -> Array:
    if isinstance(data, str):
        data = _encoded((data, 'latin1'))  # from Python 2
    whole = all(isinstance(length, int) and length >= 0 for length in shape)
    stored = np.dtype(dtype.order.replace('|', '=') + dtype.code)
    if not whole or not isinstance(data, bytes) or math.prod(shape) * stored.itemsize != len(data):
        size = len(data) if isinstance(data, bytes) else _kind(data)
        raise RefusedError(f'an array of shape {list(shape)[:8]} and type {dtype.code} comes with {size} bytes')
    array = np.frombuffer(data, stored).astype(stored.newbyteorder('='))  # a copy: one that may be written to
    try:
        return array.reshape(shape, order='F' if fortran else 'C')
    except (ValueError, OverflowError) as error:  # more dimensions, or longer ones, than numpy has
        raise RefusedError(f'an array cannot have the shape {list(shape)[:8]}: {error}') from None


def _named(name: str) -> _Name:
    if name not in CONSTRUCTIONS:
        raise RefusedError(f'names {name:.80}, which weights do not need; it is refused, because it could run code')
    return _Name(name)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise RefusedError(f'has {_kind(key)} as a key')
    return key


def _empty_array(arguments: tuple[Any, ...]) -> _StoredArray:
    """`_reconstruct(ndarray, (0,), b'b')`: shape and data follow."""
    return _StoredArray()


def _type(arguments: tuple[Any, ...]) -> _StoredType:
    """`dtype('f4', False, True)`."""
    if not arguments or arguments[0] not in DTYPES:
        raise RefusedError(
            f'has arrays of the type {arguments[0] if arguments else "none"!r:.40}; allowed are {", ".join(DTYPES)}'
        )
    return _StoredType(arguments[0])


def _ordered(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """`OrderedDict()`, or `OrderedDict([[key, value], ...])` from Python 2."""
    match arguments:
        case ():
            return {}
        case ([*items],) if all(isinstance(item, list | tuple) and len(item) == 2 for item in items):
            return {_key(key): value for key, value in items}
    raise RefusedError('makes an OrderedDict of something else than pairs')


def _tuple(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """`tuple((name, array))`, as which a tensor is saved since Paddle 2.1."""
    match arguments:
        case (list() | tuple() as items,):
            return tuple(items)
    raise RefusedError('makes a tuple of something else than a sequence')


def _encoded(arguments: tuple[Any, ...]) -> bytes:
    """`_codecs.encode(text, 'latin1')`: bytes in a pickle of protocol 2."""
    match arguments:
        case (str() as text, 'latin1'):
            try:
                return text.encode('latin1')
            except UnicodeEncodeError:
                raise RefusedError('has bytes above 255') from None
    raise RefusedError('encodes something else than bytes')


def _no_bytes(arguments: tuple[Any, ...]) -> bytes:
    """`bytes()`: no bytes, in a pickle of protocol 2."""
    if arguments:
        raise RefusedError('makes bytes of something else than nothing')
    return b''


def _datum(arguments: tuple[Any, ...]) -> Any:
    """`eval('data', {'data': array})`, as which Paddle saves a tensor of the static graph; nothing else is evaluated."""
    match arguments:
        case ('data', {'data': _StoredArray() as array}):
            return array
    raise RefusedError(f'evaluates {arguments[0] if arguments else ""!r:.60}; it is refused, because it could run code')


def _not_called(arguments: tuple[Any, ...]) -> Any:
    raise RefusedError('makes an array in another way than paddle.save')


CONSTRUCTIONS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    'numpy.core.multiarray._reconstruct': _empty_array,
    'numpy._core.multiarray._reconstruct': _empty_array,  # numpy 2
    'numpy.ndarray': _not_called,  # an argument of the above
    'numpy.dtype': _type,
    'collections.OrderedDict': _ordered,
    'builtins.tuple': _tuple,
    '__builtin__.tuple': _tuple,  # protocol 2 has the names of Python 2
    'builtins.bytes': _no_bytes,
    '__builtin__.bytes': _no_bytes,
    '_codecs.encode': _encoded,
    'builtins.eval': _datum,
    '__builtin__.eval': _datum,
}


def _kind(value: object) -> str:
    """What a value is, for a message: never the value itself, which may be long."""
    if isinstance(value, _StoredArray):
        return 'an array'
    return value.name if isinstance(value, _Name) else f'a value of type {type(value).__name__}'
