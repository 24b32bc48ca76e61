"""Archives as annotation tools export them (Roboflow, CVAT, Label Studio), and folders in buckets: unpacked aside."""

import os
import shutil
import zipfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from phalanx.curation.prepare.tree import IMAGES
from phalanx.data.checks import AnnotationError
from phalanx.system.buckets import StorePath

FETCHED = 'fetched'  # folder of the content of a bucket
MOST_FILES = 500_000
MOST_BYTES = 2**37  # in all, once unpacked


def unpack_data(place: Path, aside: Path) -> Path:
    """The folder with the files of `place`: itself, or `aside` with what the archives hold that it is, or that lie in it alone.

    What an earlier start unpacked there is taken as it is; files of a bucket are fetched to a folder beside `aside`. Raises
    AnnotationError and OSError.
    """
    place = fetch_data(place, aside.with_name(FETCHED))
    if place.is_dir():
        # a folder counts as an archive if it holds zip files and nothing else to read
        files = [path for path in place.iterdir() if not path.name.startswith('.')]
        archives = sorted(path for path in files if path.suffix.lower() == '.zip')
        has_images = any(path.suffix.lower() in IMAGES or path.is_dir() for path in files)
        if not archives or has_images:
            return place
    elif place.suffix.lower() == '.zip':
        archives = [place]
    else:
        raise AnnotationError('is neither a folder nor a zip archive')
    if not aside.exists():
        aside.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=aside.parent, prefix='.unpacking-') as place_aside:  # there whole or not at all
            for archive in archives:
                _unpack(archive, Path(place_aside, 'all', archive.stem if len(archives) > 1 else ''))
            Path(place_aside, 'all').rename(aside)
    return aside


def fetch_data(place: Path, aside: Path) -> Path:
    """Local copy of a folder or file in a bucket, in the folder `aside`; other paths as they are. Raises StoreError, OSError.

    Every file is read several times, and annotations of all formats are searched for. What an earlier start fetched is taken.
    """
    if not isinstance(place, StorePath):
        return place
    if not aside.exists():
        aside.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=aside.parent, prefix='.fetching-') as place_aside:
            place.copy_to(Path(place_aside, 'all', place.name))
            Path(place_aside, 'all').rename(aside)
        print(f'{place}: fetched to {aside / place.name}')
    return aside / place.name


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as packed:
            members = [member for member in packed.infolist() if not member.is_dir()]
            if len(members) > MOST_FILES or sum(member.file_size for member in members) > MOST_BYTES:
                raise AnnotationError(f'{archive}: holds more than {MOST_FILES} files or {MOST_BYTES >> 30} GiB')
            for member in members:
                name = os.path.normpath(member.filename.replace('\\', '/'))
                if Path(name).is_absolute() or name.startswith(os.pardir) or '\0' in name:
                    raise AnnotationError(f'{archive}: {member.filename!r} leads out of it')
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(member) as source, target.open('xb') as file:
                    shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # damaged, encrypted, or packed as Windows does
        cure = 'unpack it with another program, and give the folder'
        raise AnnotationError(f'{archive}: {error}; {cure}') from None
