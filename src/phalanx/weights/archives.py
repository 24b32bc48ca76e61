"""Weight files in archives (`.tar`, `.tar.gz`, `.zip`), read in memory: nothing is unpacked to disk."""

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping

# Suffixes of weight files; the last is the name of older files on the hub.
SUFFIXES = ('.pdparams', '.safetensors', '.pth', '.pt', '.npz', 'pytorch_model.bin')
GZIP, ZIP = b'\x1f\x8b', b'PK\x03\x04'
MOST_INFLATED, ALWAYS_ALLOWED = 100, 64 << 20  # limits of the unpacked size: a multiple of the packed size, or bytes
LONGEST_HEADER, ALL_HEADERS = 4096, 2 << 20  # bytes of tar headers: of one, and of all together, enough for 4096 members

# Exceptions of zipfile for bytes that are not an archive, or of an unknown kind.
UNREADABLE_ZIP = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError),
    *(ValueError, KeyError, RuntimeError, OverflowError),
)


class ArchiveError(Exception):
    """An archive that cannot be used; the message is the reason, without the name of the archive."""


def is_archive(data: bytes) -> bool:
    """True if `data` is a gzip file, a tar archive, or a zip archive that is not itself a weight file of numpy or torch."""
    if data.startswith(ZIP):
        # torch and numpy write zip archives themselves: those are weight files, not archives of them.
        names = zip_names(data)
        ours = ('.npy', '/data.pkl', '/archive_format')  # of numpy, torch.save, torch.export
        return bool(names) and not any(name.endswith(ours) for name in names)
    return data.startswith(GZIP) or _is_tar(data)


def holds_arrays(data: bytes) -> bool:
    """True if `data` is a file of `numpy.savez`."""
    return data.startswith(ZIP) and any(name.endswith('.npy') for name in zip_names(data))


def unpack_arrays(data: bytes) -> dict[str, bytes]:
    """Unpack the members `NAME.npy` of a file of `numpy.savez`, by NAME. Raises ArchiveError."""
    members = _read_zip(data, lambda name: name.endswith('.npy'))
    return {name.removesuffix('.npy'): content for name, content in members.items()}


def check_unpacked_size(data: bytes) -> None:
    """Raise ArchiveError for a zip archive, to be read by a library, whose declared unpacked size is over the limit."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_size(len(data), sum(member.file_size for member in archive.infolist()))
    except UNREADABLE_ZIP as error:
        raise ArchiveError(f'is not a complete zip archive: {error}') from None


def extract_weights(data: bytes, member: str | None) -> bytes:
    """Extract the only weight file of the archive `data`, or the one named `member`.

    Paths in the names of members are harmless, since nothing is written. Raises ArchiveError.
    """
    if data.startswith(ZIP):
        return _select(_read_zip(data, _is_weights), member)
    if data.startswith(GZIP):
        data = _inflate(data)
    return _select(_read_tar(data), member) if _is_tar(data) else data


def _is_tar(data: bytes) -> bool:
    return data[257:262] == b'ustar'


def _inflate(data: bytes) -> bytes:
    """Unpack the gzip file `data`. Raises ArchiveError."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            # One byte more than allowed tells a file at the limit from one beyond it.
            inflated = file.read(_size_limit(len(data)) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveError(f'is not a complete gzip file: {error}') from None
    _check_size(len(data), len(inflated))
    return inflated


class _Headers(io.BytesIO):
    """Tar archive whose headers alone are read. Their sizes are limited here, since tarfile trusts them."""

    remaining = ALL_HEADERS

    def read(self, size: int | None = -1, /) -> bytes:
        size = -1 if size is None else size
        self.remaining -= size
        if not 0 <= size <= LONGEST_HEADER or self.remaining < 0:
            raise ArchiveError(f'is not a tar archive of weights: its headers take more than {ALL_HEADERS} bytes')
        return super().read(size)


def _read_tar(data: bytes) -> dict[str, bytes]:
    """Read the weight files of a tar archive, by name."""
    files = {}
    try:
        with tarfile.open(fileobj=_Headers(data), mode='r:') as archive:
            while member := archive.next():
                archive.members.clear()  # type: ignore[attr-defined]  # each would keep a copy of the global headers
                end = member.offset_data + member.size
                if end > len(data):
                    # Sliced from memory: tarfile's own reader would copy the archive again.
                    raise tarfile.ReadError('unexpected end of data')
                if _is_weights(member.name) and member.isreg() and not member.issparse():
                    files[member.name] = data[member.offset_data : end]
    except (tarfile.TarError, EOFError, OverflowError, ValueError, RecursionError) as error:
        raise ArchiveError(f'is not a complete tar archive: {error}') from None
    return files


def _read_zip(data: bytes, is_selected: Callable[[str], bool]) -> dict[str, bytes]:
    """Read the files of a zip archive whose names are selected, by name."""
    files: dict[str, bytes] = {}
    unpacked = 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in filter(is_selected, dict.fromkeys(archive.namelist())):
                with archive.open(name) as file:
                    # The header may declare less than the file contains.
                    files[name] = file.read(_size_limit(len(data)) - unpacked + 1)
                unpacked += len(files[name])
                _check_size(len(data), unpacked)
    except UNREADABLE_ZIP as error:
        raise ArchiveError(f'is not a complete zip archive: {error}') from None
    return files


def _select(files: Mapping[str, bytes], member: str | None) -> bytes:
    found = [name for name in files if member in (None, name, name.rpartition('/')[2])]
    # Never guess: several files may be several networks, or training states.
    if len(found) == 1:
        return files[found[0]]
    listed, what = ', '.join(files) or 'none', f'the file {member}' if member else 'one file of weights'
    raise ArchiveError(f'must hold {what}, holds {listed}; choose one with ...#file=NAME')


def _is_weights(name: str) -> bool:
    # Hidden files are metadata, such as macOS adds.
    last = name.rpartition('/')[2]
    return last.endswith(SUFFIXES) and not last.startswith('.')


def zip_names(data: bytes) -> list[str]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.namelist()
    except UNREADABLE_ZIP:
        return []


def _size_limit(packed: int) -> int:
    """Largest unpacked size of an archive of `packed` bytes."""
    return max(MOST_INFLATED * packed, ALWAYS_ALLOWED)


def _check_size(packed: int, unpacked: int) -> None:
    if unpacked > _size_limit(packed):
        raise ArchiveError(f'{packed} bytes unpack to more than {_size_limit(packed)}; weights do not compress that well')
