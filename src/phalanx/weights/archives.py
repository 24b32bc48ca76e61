"""The file of weights in an archive (`.tar`, `.tar.gz`, `.zip`), read in memory: nothing of it is unpacked to the disk."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Mapping

SUFFIXES = ('.pdparams', '.safetensors', '.pth', '.pt', '.npz')  # of the files that are looked for
GZIP, ZIP = b'\x1f\x8b', b'PK\x03\x04'
MOST_INFLATED, ALWAYS_ALLOWED = 100, 64 << 20  # unpacked, an archive may be so many times its size, or so many bytes

UNREADABLE_ZIP = (  # what zipfile raises for bytes that are not an archive, or one that it does not know
    *(
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        RuntimeError,
        NotImplementedError,
        OverflowError,
    ),
)


class ArchiveError(Exception):
    """What is wrong with an archive, without its name."""


def is_archive(data: bytes) -> bool:
    """Whether `data` is a gzip file, a tar archive, or a zip archive that is not a file of weights itself."""
    if data.startswith(ZIP):
        names = _zip_names(data)
        return bool(names) and not any(name.endswith(('.npy', '/data.pkl')) for name in names)  # arrays of numpy, of torch
    return data.startswith(GZIP) or data[257:262] == b'ustar'


def holds_arrays(data: bytes) -> bool:
    """Whether `data` is a file of numpy's `savez`."""
    return data.startswith(ZIP) and any(name.endswith('.npy') for name in _zip_names(data))


def only_weights(data: bytes, wanted: str | None = None) -> bytes:
    """The content of the only file of weights in the archive `data`, or of the one that `wanted` names.

    Where names of members point to does not matter, since nothing is written. Raises ArchiveError.
    """
    limit = max(MOST_INFLATED * len(data), ALWAYS_ALLOWED)
    if data.startswith(ZIP):
        return _chosen(_in_zip(data, limit), wanted)
    if data.startswith(GZIP):
        data = _inflated(data, limit)
    return _chosen(_in_tar(data), wanted) if data[257:262] == b'ustar' else data


def _inflated(data: bytes, limit: int) -> bytes:
    """What the gzip file `data` holds."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            inflated = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveError(f'is not a complete gzip file: {error}') from None
    _check_size(len(data), len(inflated), limit)
    return inflated


def _in_tar(data: bytes) -> dict[str, bytes]:
    """The files of weights in a tar archive, by name."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode='r:') as archive:
            for member in archive:
                if _is_weights(member.name) and member.isreg() and not member.issparse():
                    file = archive.extractfile(member)
                    assert file is not None, 'a regular member has content'
                    found[member.name] = file.read()
    except (tarfile.TarError, EOFError, OverflowError, ValueError, RecursionError) as error:
        raise ArchiveError(f'is not a complete tar archive: {error}') from None
    return found


def _in_zip(data: bytes, limit: int) -> dict[str, bytes]:
    """The files of weights in a zip archive, by name; together they have no more bytes than `limit`."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in filter(_is_weights, archive.namelist()):
                left = limit - sum(map(len, found.values()))
                with archive.open(name) as file:
                    found[name] = file.read(left + 1)  # what the header says of its size may be untrue
                _check_size(len(data), len(found[name]), left)
    except UNREADABLE_ZIP as error:
        raise ArchiveError(f'is not a complete zip archive: {error}') from None
    return found


def _chosen(found: Mapping[str, bytes], wanted: str | None) -> bytes:
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


def _check_size(packed: int, unpacked: int, limit: int) -> None:
    if unpacked > limit:
        raise ArchiveError(f'{packed} bytes unpack to more than {limit}; no weights are packed so well')
