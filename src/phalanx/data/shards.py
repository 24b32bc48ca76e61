"""Shards of WebDataset (tar) and of MosaicML Streaming (MDS), with access to each sample, on a disk or in a bucket.

Samples have the order of the shards and of their place in them; an epoch draws from all of them. A shard in a bucket is fetched
as a whole. Read as their own readers do: `webdataset` 1.0 (tariterators.py), `streaming` 0.13 (base/format/mds).
"""

from __future__ import annotations

import json
import re
import tarfile
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phalanx.data.checks import AnnotationError
from phalanx.data.folders import check_folder, check_inside
from phalanx.data.image import LabelMap, decode_image, decode_labels
from phalanx.data.listed import Packed, Packer, digest_arrays
from phalanx.data.samples import Draw, Image, SampleError, Split
from phalanx.system.buckets import fetch_ahead

INDEX = 'index.json'  # the list of shards of MDS
MEMBER = re.compile(r'((?:.*/|)[^.]+)[.]([^/]*)', re.DOTALL)  # key and field of a member of a tar file
META = re.compile(r'__[^/]*__($|/)')  # members that are no samples
BRACES = re.compile(r'\{(\d+)\.\.(\d+)\}')
BLOCK = 512  # of tar files, which end with two blocks of zeros and are filled up to 20 blocks
DTYPES = {8: 'uint8', 9: 'int8', 16: 'uint16', 17: 'int16', 18: 'float16', 32: 'uint32', 33: 'int32', 34: 'float32'}
ENCODINGS = ('bytes', 'str', 'json', 'jpeg', 'png', 'pil', 'ndarray')  # of MDS that can be images, label maps or texts
SHOWN = 5  # names in messages


@dataclass(frozen=True)
class Shards:
    """Samples of several fields (columns) in files."""

    files: tuple[Path, ...]
    counts: tuple[int, ...]  # samples per file
    fields: tuple[str, ...]
    notes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(self.counts)

    def place(self, index: int) -> tuple[Path, int]:
        """File of a sample, and its number there."""
        shard = int(np.searchsorted(np.cumsum(self.counts), index, side='right'))
        return self.files[shard], index - sum(self.counts[:shard])

    def file(self, index: int) -> Path:
        return self.place(index)[0]

    def label(self, index: int, column: int) -> Path:
        """Path that names a field of a sample in messages."""
        raise NotImplementedError

    def data(self, index: int, column: int) -> bytes:
        """Bytes of a field. Raises SampleError."""
        raise NotImplementedError

    def image(self, index: int, column: int) -> Image:
        """Image [H, W, 3] in a field. Raises SampleError."""
        return decode_image(self.data(index, column), str(self.label(index, column)))

    def label_map(self, index: int, column: int) -> LabelMap:
        """Label map [H, W] in a field. Raises SampleError."""
        return decode_labels(self.data(index, column), str(self.label(index, column)))

    def text(self, index: int, column: int) -> str:
        """Text in a field. Raises SampleError."""
        try:
            return self.data(index, column).decode()
        except UnicodeDecodeError as error:
            raise SampleError(f'{self.label(index, column)}: its text is not UTF-8 (byte {error.start})') from None

    def annotation(self, index: int, column: int) -> str:
        """Text in a field, read before training starts. Raises AnnotationError."""
        try:
            return self.text(index, column).removeprefix('\ufeff')
        except SampleError as error:
            raise AnnotationError(str(error)) from None

    def digest(self) -> bytes:
        """Digest of the names and numbers of samples."""
        names = Packed.of([*(file.name for file in self.files), *self.fields])
        return names.digest() + digest_arrays(np.asarray(self.counts))


@dataclass(frozen=True)
class TarShards(Shards):
    """Samples in tar files; their fields are encoded files."""

    keys: Packed = field(default_factory=lambda: Packed.of(()))
    suffixes: Packed = field(default_factory=lambda: Packed.of(()))  # of each field of each sample
    places: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # [N, fields, 2] first byte, size

    def label(self, index: int, column: int) -> Path:
        file = self.file(index)
        return file.parent / f'{file.name}:{self.keys[index]}.{self.suffixes[index * len(self.fields) + column]}'

    def data(self, index: int, column: int) -> bytes:
        begin, size = map(int, self.places[index, column])
        with self.file(index).open('rb') as file:
            file.seek(begin)
            found: bytes = file.read(size)
        if len(found) != size:
            raise SampleError(f'{self.label(index, column)}: is cut off')
        return found

    def digest(self) -> bytes:
        return super().digest() + self.keys.digest() + digest_arrays(self.places)


@dataclass(frozen=True)
class MdsShards(Shards):
    """Samples in MDS files: a table of their positions, and a block for each, with the sizes of its columns first."""

    names: tuple[str, ...] = ()  # of all columns
    encodings: tuple[str, ...] = ()  # of all columns
    sizes: tuple[int | None, ...] = ()  # of all columns, None if they vary

    def label(self, index: int, column: int) -> Path:
        file, number = self.place(index)
        return file.parent / f'{file.name}:{number}.{self.fields[column]}'

    def data(self, index: int, column: int) -> bytes:
        path, number = self.place(index)
        with path.open('rb') as file:
            file.seek(4 * (1 + number))
            begin, end = np.frombuffer(file.read(8), np.uint32).tolist() or (0, 0)
            file.seek(begin)
            block = file.read(end - begin)
        if not block or len(block) != end - begin:
            raise SampleError(f'{self.label(index, column)}: is cut off')
        varying = [number for number, size in enumerate(self.sizes) if not size]
        sizes = [size or 0 for size in self.sizes]
        for place, size in zip(varying, np.frombuffer(block[: 4 * len(varying)], np.uint32).tolist(), strict=True):
            sizes[place] = size
        wanted = self.names.index(self.fields[column])
        offset = 4 * len(varying) + sum(sizes[:wanted])
        return bytes(block[offset : offset + sizes[wanted]])

    def _array(self, index: int, column: int) -> npt.NDArray[np.uint8] | None:
        """Pixels [H, W] or [H, W, C] of a column that holds no encoded file; None for others. Raises SampleError."""
        encoding = self.encodings[self.names.index(self.fields[column])]
        if encoding not in ('pil',) and not encoding.startswith('ndarray'):
            return None
        data = self.data(index, column)
        try:
            pixels = _decode_pil(data) if encoding == 'pil' else _decode_array(data, encoding)
        except (ValueError, IndexError, KeyError) as error:
            raise SampleError(f'{self.label(index, column)}: is not a complete {encoding} ({error})') from None
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
            raise SampleError(
                f'{self.label(index, column)}: has {pixels.dtype} {list(pixels.shape)}; expected uint8 [H, W] or [H, W, 3]'
            )
        return pixels

    def image(self, index: int, column: int) -> Image:
        if (pixels := self._array(index, column)) is None:
            return super().image(index, column)
        if pixels.ndim == 3 and pixels.shape[2] != 3:
            raise SampleError(f'{self.label(index, column)}: has {pixels.shape[2]} channels; expected 3, or none')
        return np.repeat(pixels[..., None], 3, axis=2) if pixels.ndim == 2 else np.ascontiguousarray(pixels)

    def label_map(self, index: int, column: int) -> LabelMap:
        if (pixels := self._array(index, column)) is None:
            return super().label_map(index, column)
        if pixels.ndim != 2:
            raise SampleError(f'{self.label(index, column)}: has shape {list(pixels.shape)}; a label map has [H, W]')
        return np.ascontiguousarray(pixels)


class ShardSource:
    """Base of a Source of the samples in shards, whose first field is the image."""

    def __init__(self, opened: Shards) -> None:
        self.shards, self.notes = opened, opened.notes

    def __len__(self) -> int:
        return len(self.shards)

    def check_files(self) -> None:
        """Do nothing: opening the shards has found them."""

    def digest(self) -> bytes:
        return self.shards.digest()

    def name(self, index: int) -> str:
        return str(self.shards.label(index, 0))

    def files(self, draw: Draw) -> list[str]:
        return [str(self.shards.file(draw.index))]


@dataclass(kw_only=True)
class ShardData:
    """Options of data sets in shards below `root`.

    `train`, `eval`: a folder of .tar files or MDS shards, or names of tar files with `*` or `{000..123}`. `image`: the field
    (suffix, column) of the image, `;` between alternatives.
    """

    root: Path
    train: str = 'train'
    eval: str = 'val'
    image: str = 'jpg;jpeg;png;webp;image'

    def open(self, split: Split, key: str, names: str) -> Shards:
        """Open the shards of a split, with the field `key` beside the image. Raises FileNotFoundError and ValueError."""
        check_folder(self.root)
        return open_shards(self.root, self.train if split == 'train' else self.eval, {'image': self.image, key: names})


def open_shards(root: Path, place: str, wanted: Mapping[str, str]) -> Shards:
    """Open the shards at `place` below `root`: a folder of .tar files or with the index.json of MDS, or names of tar files with
    `*` or `{000..123}`.

    `wanted`: by the key of the recipe, the names of a field, `;` between alternatives, the first of which that a sample has is
    taken. Raises FileNotFoundError and ValueError.
    """
    check_inside(place, root, 'data')
    if (root / place / INDEX).is_file():
        return _open_mds(root / place, wanted)
    pattern = place if place.endswith('.tar') else f'{place.rstrip("/")}/*.tar'
    ranges = [range(int(first), int(last) + 1) for first, last in BRACES.findall(pattern)]
    widths = [len(first) for first, _ in BRACES.findall(pattern)]
    template = BRACES.sub('{:0{}}', pattern) if ranges else ''
    names = [template.format(*(x for pair in zip(each, widths, strict=True) for x in pair)) for each in product(*ranges)]
    files = [root / name for name in names] if ranges else sorted(root.glob(pattern), key=str)
    for file in files if ranges else ():
        if not file.is_file():
            raise FileNotFoundError(f'{file}: there is no such shard')
    if not files:
        packed = [path.name for suffix in ('.tar.gz', '.tgz', '.tar.zst') for path in root.glob(pattern[:-4] + suffix)]
        why = f'; {packed[0]} is compressed, which allows no access to single samples: unpack it to .tar' if packed else ''
        raise FileNotFoundError(f'{root / pattern}: there are no such tar files, and no {INDEX} of MDS shards{why}')
    return _open_tars(files, wanted)


def _open_tars(files: Sequence[Path], wanted: Mapping[str, str]) -> TarShards:
    fetch_ahead(map(str, files))
    keys, suffixes, places, counts, unused = Packer(), Packer(), array('q'), [], Counter[str]()
    for file in files:
        samples = _samples_of(file)
        for key, members in samples:
            used = _choose(f'{file}: {key}', members, wanted)
            keys.append(key)
            for suffix in used:
                suffixes.append(suffix)
                places.extend(members[suffix])
            unused.update(f'fields .{suffix} are not used' for suffix in members if suffix not in used)
        counts.append(len(samples))
    table = np.frombuffer(places, np.int64).reshape(-1, len(wanted), 2) if places else np.zeros((0, len(wanted), 2), np.int64)
    if not len(table):
        raise ValueError(f'{files[0].parent}: its tar files hold no samples')
    return TarShards(tuple(files), tuple(counts), tuple(wanted), dict(unused), keys.pack(), suffixes.pack(), table)


def _samples_of(file: Path) -> list[tuple[str, dict[str, tuple[int, int]]]]:
    """Key of each sample in a tar file, and first byte and size of its fields. Raises ValueError."""
    samples: list[tuple[str, dict[str, tuple[int, int]]]] = []
    end = 0
    try:
        with file.open('rb') as opened, tarfile.open(fileobj=opened, mode='r:') as tar:
            while (member := tar.next()) is not None:
                end = member.offset_data + -(-member.size // BLOCK) * BLOCK
                tar.members = []  # type: ignore[attr-defined] # else it keeps all
                match = MEMBER.fullmatch(member.name)
                if not member.isreg() or META.match(member.name) or match is None:
                    continue
                if member.issparse():
                    raise ValueError(f'{file}: {member.name} is a sparse file; write it again without holes')
                key, suffix = match[1], match[2].lower()
                if not samples or samples[-1][0] != key:
                    samples.append((key, {}))
                if suffix in samples[-1][1]:
                    raise ValueError(f'{file}: has {member.name} twice')
                samples[-1][1][suffix] = member.offset_data, member.size
            opened.seek(end)
            marker, rest = opened.read(2 * BLOCK), opened.read()
    except tarfile.TarError as error:
        raise ValueError(f'{file}: is not a complete tar file ({error}); compressed ones must be unpacked') from None
    if len(marker) < BLOCK or marker.strip(b'\0'):
        raise ValueError(f'{file}: is cut off: it does not end as tar files do; write it again')
    if rest.strip(b'\0'):
        raise ValueError(f'{file}: more follows behind its end; shards that were joined must be separate files')
    return samples


def _choose(sample: str, members: Mapping[str, object], wanted: Mapping[str, str]) -> list[str]:
    """Field of a sample for each key of the recipe: the first of its alternatives that is not another's. Raises ValueError."""
    used: dict[str, str] = {}  # key of the recipe by field
    for setting, names in wanted.items():
        found = next((name for name in names.lower().split(';') if name in members and name not in used), None)
        if found is None:
            there = ', '.join(f'{name} (data.{used[name]})' if name in used else name for name in sorted(members)[:SHOWN])
            raise ValueError(f'{sample} has no field for data.{setting}: {names}; it has {there or "none"}')
        used[found] = setting
    return list(used)


def _open_mds(folder: Path, wanted: Mapping[str, str]) -> MdsShards:
    try:
        index = json.loads((folder / INDEX).read_text(encoding='utf-8'))
        shards = list(index['shards'])
        forms = {(shard['format'], index['version'], shard['version']) for shard in shards}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{folder / INDEX}: is not the index of MDS shards ({error})') from None
    if forms - {('mds', 2, 2)}:
        raise ValueError(f'{folder / INDEX}: has shards of format {min(forms)[0]!r}, version {min(forms)[2]}; mds, 2 is read')
    columns = [(tuple(shard[f'column_{what}']) for what in ('names', 'encodings', 'sizes')) for shard in shards]
    kinds = {tuple(each) for each in columns}
    if len(kinds) != 1:
        raise ValueError(f'{folder / INDEX}: its shards have different columns, or there are none')
    ((names, encodings, sizes),) = kinds
    own = {name.lower(): name for name in names}
    used = _choose(f'{folder / INDEX}: every sample', own, wanted)
    fields = tuple(own[name] for name in used)
    for name in fields:
        if (encoding := encodings[names.index(name)]).partition(':')[0] not in ENCODINGS:
            why = 'runs code when it is read' if encoding == 'pkl' else f'is none of {", ".join(ENCODINGS)}'
            raise ValueError(
                f'{folder / INDEX}: the column {name} has the encoding {encoding}, which {why}; write it as another'
            )
    files = [_mds_file(folder, shard) for shard in shards]
    unused = sorted(set(names) - set(fields))
    notes = {f'columns are not used: {", ".join(unused)}': len(unused)} if unused else {}
    return MdsShards(tuple(files), tuple(int(s['samples']) for s in shards), fields, notes, names, encodings, sizes)


def _mds_file(folder: Path, shard: Mapping[str, object]) -> Path:
    """The file of a shard. Raises FileNotFoundError and ValueError."""
    raw = dict(shard['raw_data'])  # type: ignore[call-overload]
    file = folder / check_inside(str(raw['basename']), folder, str(folder / INDEX))
    if not file.is_file():
        how = f'compressed ({shard["compression"]}); unpack the shards or write them without' if shard.get('zip_data') else ''
        raise FileNotFoundError(f'{file}: there is no such shard{"; it is " + how if how else ""}')
    if (size := file.stat().st_size) != raw['bytes']:
        raise ValueError(f'{file}: has {size} bytes, {raw["bytes"]} were written; it is cut off or from another set')
    return file


def _decode_pil(data: bytes) -> npt.NDArray[np.uint8]:
    """Pixels of a raw Pillow image: width, height, length of the mode (uint32 each), mode, pixels."""
    width, height, length = np.frombuffer(data[:12], np.uint32).tolist()
    channels = {'L': (), 'P': (), 'RGB': (3,)}[data[12 : 12 + length].decode()]
    return np.frombuffer(data[12 + length :], np.uint8).reshape(height, width, *channels)


def _decode_array(data: bytes, encoding: str) -> npt.NDArray[np.uint8]:
    """Array of NumPy: its type and shape come from the encoding, `ndarray:uint8:64,96,3`, or, if not there, from the data."""
    _, dtype, shape = (*encoding.split(':'), '', '')[:3]
    place = 0
    if not dtype:
        dtype, place = DTYPES[data[0]], 1
    if shape:
        sizes = [int(size) for size in shape.split(',')]
    else:
        head, place = data[place], place + 1
        width, count = 1 << (head & 3), head >> 2
        sizes = np.frombuffer(data[place : place + width * count], f'<u{width}').tolist()
        place += width * count
    return np.frombuffer(data[place:], dtype).reshape(sizes)
