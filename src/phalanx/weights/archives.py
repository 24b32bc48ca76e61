"""The file of weights in an archive (`.tar`, `.tar.gz`, `.zip`), read in memory: nothing of it is unpacked to the disk."""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping

# Of the files that are looked for; the last is what the hub's older files are called.
SUFFIXES = ('.pdparams', '.safetensors', '.pth', '.pt', '.npz', 'pytorch_model.bin')
GZIP, ZIP = b'\x1f\x8b', b'PK\x03\x04'
MOST_INFLATED, ALWAYS_ALLOWED = 100, 64 << 20  # unpacked, an archive may be so many times its size, or so many bytes
LONGEST_HEADER, ALL_HEADERS = 4096, 2 << 20  # bytes in a tar archive: of one, and together, which makes 4096 members

# What zipfile raises for bytes that are not an archive, or one that it does not know.
UNREADABLE_ZIP = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, RuntimeError, OverflowError)


class ArchiveError(Exception):
    """What is wrong with an archive, without its name."""


def is_archive(data: bytes) -> bool:
    """Whether `data` is a gzip file, a tar archive, or a zip archive that is not a file of weights itself."""
    if data.startswith(ZIP):
        names = _zip_names(data)
        return bool(names) and not any(name.endswith(('.npy', '/data.pkl')) for name in names)  # arrays of numpy, of torch
    return data.startswith(GZIP) or _is_tar(data)


def holds_arrays(data: bytes) -> bool:
    """Whether `data` is a file of numpy's `savez`."""
    return data.startswith(ZIP) and any(name.endswith('.npy') for name in _zip_names(data))


def unpack_arrays(data: bytes) -> dict[str, bytes]:
    """The members `NAME.npy` of a file of numpy's `savez`, unpacked, by NAME. Raises ArchiveError."""
    found = _read_zip(data, lambda name: name.endswith('.npy'))
    return {name.removesuffix('.npy'): content for name, content in found.items()}


def check_unpacked_size(data: bytes) -> None:
    """Raises ArchiveError for a zip archive, to be read by a library, that says itself that it unpacks to too much."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_size(len(data), sum(member.file_size for member in archive.infolist()))
    except UNREADABLE_ZIP as error:
        raise ArchiveError(f'is not a complete zip archive: {error}') from None


def extract_weights(data: bytes, wanted: str | None) -> bytes:
    """The content of the only file of weights in the archive `data`, or of the one that `wanted` names.

    Where names of members point to does not matter, since nothing is written. Raises ArchiveError.
    """
    if data.startswith(ZIP):
        return _select(_read_zip(data, _is_weights), wanted)
    if data.startswith(GZIP):
        data = _inflate(data)
    return _select(_read_tar(data), wanted) if _is_tar(data) else data


def _is_tar(data: bytes) -> bool:
    return data[257:262] == b'ustar'


def _inflate(data: bytes) -> bytes:
    """What the gzip file `data` holds."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            inflated = file.read(_size_limit(len(data)) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveError(f'is not a complete gzip file: {error}') from None
    _check_size(len(data), len(inflated))
    return inflated


class _Headers(io.BytesIO):
    """A tar archive of which only headers are read: tarfile believes what they say of their length and number."""

    left = ALL_HEADERS

    def read(self, size: int | None = -1, /) -> bytes:
        size = -1 if size is None else size
        self.left -= size
        if not 0 <= size <= LONGEST_HEADER or self.left < 0:
            raise ArchiveError(f'is no tar archive of weights: its headers take more than {ALL_HEADERS} bytes')
        return super().read(size)


def _read_tar(data: bytes) -> dict[str, bytes]:
    """The files of weights in a tar archive, by name."""
    found = {}
    try:
        with tarfile.open(fileobj=_Headers(data), mode='r:') as archive:
            while member := archive.next():
                archive.members.clear()  # type: ignore[attr-defined]  # each has a copy of what global headers say
                end = member.offset_data + member.size
                if end > len(data):
                    raise tarfile.ReadError('unexpected end of data')
                if _is_weights(member.name) and member.isreg() and not member.issparse():
                    found[member.name] = data[member.offset_data : end]
    except (tarfile.TarError, EOFError, OverflowError, ValueError, RecursionError) as error:
        raise ArchiveError(f'is not a complete tar archive: {error}') from None
    return found


def _read_zip(data: bytes, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The files with a `wanted` name in a zip archive, by name."""
    found: dict[str, bytes] = {}
    unpacked = 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in filter(wanted, dict.fromkeys(archive.namelist())):
                with archive.open(name) as file:
                    found[name] = file.read(_size_limit(len(data)) - unpacked + 1)  # its header may say less than there is
                unpacked += len(found[name])
                _check_size(len(data), unpacked)
    except UNREADABLE_ZIP as error:
        raise ArchiveError(f'is not a complete zip archive: {error}') from None
    return found


def _select(found: Mapping[str, bytes], wanted: str | None) -> bytes:
    if wanted is not None:
        found = {name: content for name, content in found.items() if wanted in (name, name.rpartition('/')[2])}
    if len(found) == 1:
        return next(iter(found.values()))
    listed, what = ', '.join(found) or 'none', f'the file {wanted}' if wanted else 'one file of weights'
    raise ArchiveError(f'must hold {what}, holds {listed}; name the one that you mean: ...#file=NAME')


def _is_weights(name: str) -> bool:
    last = name.rpartition('/')[2]
    return last.endswith(SUFFIXES) and not last.startswith('.')


def _zip_names(data: bytes) -> list[str]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.namelist()
    except UNREADABLE_ZIP:
        return []


def _size_limit(packed: int) -> int:
    """The most bytes that an archive of `packed` bytes may hold."""
    return max(MOST_INFLATED * packed, ALWAYS_ALLOWED)


def _check_size(packed: int, unpacked: int) -> None:
    if unpacked > _size_limit(packed):
        raise ArchiveError(f'{packed} bytes unpack to more than {_size_limit(packed)}; no weights are packed so well')
