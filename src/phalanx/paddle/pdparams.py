"""Reader of Paddle's weight files, `.pdparams`.

A `.pdparams` is a pickle, that is, a program. Python's own unpickler runs it, reduced to the opcodes that weights need and to
the constructors in ALLOWED, none of which runs code of the file. Memory is bounded by the size of the file.
"""

import io
import math
import pickle
import struct
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NAME_TABLE = 'StructuredToParameterName@@'  # parameter names of the static graph, beside the arrays
SPLIT_TABLE = 'UnpackBigParamInfor@@'  # which arrays were cut into slices, because pickles of protocol 2 and 3 end at 4 GB
ENTRIES = ('model', 'blobs')  # with the arrays, among other entries; the second in older files of Detectron2
DTYPES = ('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8')
LARGEST_PROTOCOL = 4  # the largest that paddle.save takes
OPCODES = (  # by their names in `pickle`; those that call or set something are in `_Unpickler`
    'PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINSTRING SHORT_BINSTRING BINUNICODE '
    'SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_LIST EMPTY_DICT EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 '
    'TUPLE3 APPEND APPENDS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL'
)
MOST_BUILT = 4  # limit on the size of the constructed objects, as a multiple of the file size
MALFORMED = (pickle.UnpicklingError, struct.error, EOFError, ValueError, TypeError, LookupError, AttributeError, OverflowError)


class RefusedError(Exception):
    """A file that is refused; the message is the reason, without the name of the file."""


def arrays_in(data: bytes) -> dict[str, Array]:
    """Read {name: array} from the bytes of a `.pdparams`, as `paddle.save` wrote it.

    From a file with a dict `model` or `blobs` among other entries (an optimizer's state, say), return its content. Raises
    RefusedError.
    """
    try:
        return _arrays(_Unpickler(data).load(), len(data))
    except MALFORMED as error:
        raise RefusedError(f'is not a complete file of paddle.save: {error!r:.200}') from None


def _arrays(saved: object, size: int) -> dict[str, Array]:
    """Arrays of the saved object, with slices joined and without the names of the static graph."""
    for entry in ENTRIES:
        if isinstance(saved, dict) and isinstance(saved.get(entry), dict):
            saved = saved[entry]
    if not isinstance(saved, dict) or not saved:
        raise RefusedError(f'expected a dict of arrays, got {_kind(saved)}')
    slices = saved.get(SPLIT_TABLE, {})
    arrays = {name: _array(name, value) for name, value in saved.items() if name not in (NAME_TABLE, SPLIT_TABLE)}
    if (total := sum(array.nbytes for array in arrays.values())) > size:  # one stored array under many names
        raise RefusedError(f'{size} bytes claim to hold arrays of {total}')
    for name, facts in slices.items():
        arrays[name] = np.concatenate([arrays.pop(_key(part)) for part in facts['slices']]).reshape(facts['OriginShape'])
    return arrays


def _array(name: str, value: object) -> Array:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):  # (name in the static graph, array)
        value = value[1]
    if not isinstance(value, _Array) or value.array is None:
        raise RefusedError(f'{name!r:.80} is {_kind(value)}, not an array')
    return value.array


class _DType:
    """A numpy dtype: `dtype('f4', False, True)`, to which BUILD gives the byte order."""

    order = '='

    def __init__(self, code: object, *_: object) -> None:
        if code not in DTYPES:
            shown = repr(code[:40]) if isinstance(code, str) else _kind(code)
            raise RefusedError(f'has arrays of the type {shown}; allowed are {", ".join(DTYPES)}')
        self.code = str(code)

    def build(self, state: object) -> int:
        match state:
            case (3 | 4, '<' | '>' | '|' | '=' as order, None, None, None, -1, -1, 0, *_):
                self.order = order.replace('|', '=')
                return 0
        raise RefusedError('has a type of arrays with a state that paddle.save does not write')


class _Array:
    """A numpy array: `_reconstruct(ndarray, (0,), b'b')`, to which BUILD gives shape, dtype and data."""

    array: Array | None = None

    def __init__(self, *_: object) -> None:
        pass

    def build(self, state: object) -> int:
        """Take shape, dtype and data; return the number of bytes of the array."""
        match state:
            case (1, tuple() as shape, _DType() as dtype, bool() | 0 | 1 as fortran, bytes() | str() as data):
                content = data.encode('latin1') if isinstance(data, str) else data  # from Python 2
                stored = np.dtype(dtype.order + dtype.code)
                known = len(shape) <= 64 and all(isinstance(n, int) and 0 <= n < 2**63 for n in shape)
                if not known or math.prod(shape) * stored.itemsize != len(content):
                    lengths = list(shape) if known else 'that numpy does not have'
                    raise RefusedError(f'has an array of shape {lengths} and type {dtype.code} in {len(content)} bytes')
                values = np.frombuffer(content, stored).astype(stored.newbyteorder('='))  # a copy: one that may be written to
                self.array = values.reshape(shape, order='F' if fortran else 'C')
                return values.nbytes
        raise RefusedError('has an array with a state that paddle.save does not write')


def _ordered_dict(items: Any = ()) -> dict[str, Any]:
    """`OrderedDict()`, or `OrderedDict([[key, value], ...])` from Python 2."""
    ordered = {_key(key): value for key, value in items}
    if len(ordered) != len(items):
        raise RefusedError('has a key twice')
    return ordered


def _evaluate(expression: object, names: Any = None) -> Any:
    """`eval('data', {'data': array})`, the form of a tensor of the static graph; nothing else is evaluated."""
    if expression != 'data' or not isinstance(names, dict):
        shown = repr(expression[:60]) if isinstance(expression, str) else _kind(expression)
        raise RefusedError(f'evaluates {shown}; it is refused, because it could run code')
    return names.get('data')


def _bytes(text: object = '', encoding: object = 'latin1') -> bytes:
    """`_codecs.encode(text, 'latin1')` and `bytes()`: bytes in a pickle of protocol 2."""
    if not isinstance(text, str) or encoding != 'latin1':
        raise RefusedError('makes bytes of something else than text')
    return text.encode('latin1')


def _identity(items: object) -> object:
    """`tuple((name, array))`, the form of a tensor since Paddle 2.1."""
    return items


ALLOWED: dict[str, Callable[..., Any]] = {
    'numpy.core.multiarray._reconstruct': _Array,
    'numpy._core.multiarray._reconstruct': _Array,  # numpy 2
    'numpy.ndarray': _Array,  # an argument of the above
    'numpy.dtype': _DType,
    'collections.OrderedDict': _ordered_dict,
    'builtins.tuple': _identity,
    'builtins.bytes': _bytes,
    '_codecs.encode': _bytes,
    'builtins.eval': _evaluate,
}


class _Unpickler(pickle._Unpickler):
    """Python's unpickler with a part of its opcodes. (The one in C takes as much memory as a file claims to need.)"""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding='latin1')
        self.left = MOST_BUILT * len(data)
        if data[:1] == pickle.PROTO and data[1:2] > bytes([LARGEST_PROTOCOL]):
            raise RefusedError(f'is a pickle of protocol {data[1]}; paddle.save writes 2 to {LARGEST_PROTOCOL}')

    def load(self) -> Any:
        try:
            return super().load()
        except KeyError as error:  # from `dispatch`
            raise RefusedError(f'is not a complete file of paddle.save: weights do not need the opcode {error}') from None

    def find_class(self, module: str, name: str) -> Any:
        full = f'{module.replace("__builtin__", "builtins")}.{name}'  # protocol 2 has the names of Python 2
        if full.startswith('torch.'):
            raise RefusedError('is a pickle of tensors, which is not read because it could run code: write it with torch.save')
        if full not in ALLOWED:
            raise RefusedError(f'names {full:.80}, which weights do not need; it is refused, because it could run code')
        return ALLOWED[full]

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise RefusedError('claims to hold more than its bytes')

    def load_reduce(self) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        self.stack.append(called(*arguments))
        self.spend(len(self.stack[-1]) if isinstance(self.stack[-1], bytes | dict) else 0)

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, _Array | _DType):
            raise RefusedError(f'sets the state of {_kind(made)}')
        self.spend(made.build(state))

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][_key(key)] = value

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(zip(map(_key, items[::2]), items[1::2], strict=True))

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in OPCODES.split()},
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }


def _key(key: object) -> str:
    """Return `key`, a string. (Hashing tuples nested without end would crash the process.)"""
    if not isinstance(key, str):
        raise RefusedError(f'has {_kind(key)} as a key')
    return key


def _kind(value: object) -> str:
    """Type of a value, for a message; never the value itself, which may be of any size."""
    return 'an array' if isinstance(value, _Array) else f'a value of type {type(value).__name__}'
