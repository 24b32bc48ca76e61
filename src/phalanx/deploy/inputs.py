"""Inputs of `phalanx predict` and `phalanx read`: files, folders, patterns, lists, cameras; and the names of their results."""

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from phalanx.config.read import did_you_mean
from phalanx.data import pdf
from phalanx.data.image import Pages
from phalanx.data.samples import Image, SampleError
from phalanx.data.video import VIDEOS
from phalanx.report.terminal import track
from phalanx.system.buckets import SCHEMES, StorePath
from phalanx.system.errors import RequestError, describe_error
from phalanx.system.paths import parse_path

SUFFIXES = {'.jpg', '.jpeg', '.jpe', '.jfif', '.png', '.bmp', '.tif', '.tiff', '.webp', '.gif', '.pbm', '.pgm', '.ppm'}
PDF = '.pdf'
MOST_NAMED = 10  # files that a message about a missing one names
ADDRESS = re.compile(r'[A-Za-z][A-Za-z0-9+.-]+:/')


def list_files(paths: Sequence[Path], out: Path, *, beside: bool = False) -> dict[Path, Path]:
    """Image, PDF and video files among files, folders and patterns (`photos/*.jpg`) -> paths of their results (`named`).

    Result paths are below the folder `out`; those of videos have a suffix. `-` reads paths from standard input, one per line; a
    number that is not a file is a camera. Files in `out` are results, not images. The number of other files in folders is
    reported on standard error. Raises RequestError for missing files, for addresses, without any image, for an image that its
    own result could replace (not those of labels, which lie `beside` it), and for results in a file.
    """
    if out.exists() and not out.is_dir():
        raise RequestError(f'--out {out}: is a file; results need a folder')
    results = out.resolve()
    inputs: dict[Path, Path] = {}
    left_out: Counter[str] = Counter()
    for path in _expand(paths):
        if path.is_dir() and not path.is_file():  # a page on a web server may be either
            # Results may be below a given folder: they are not inputs, unless the folder is `out` itself.
            # A link to a file that is gone is an input that cannot be read.
            below = sorted(file for file in path.rglob('*') if file.is_file() or (file.is_symlink() and not file.exists()))
            if path.resolve() != results:
                below = [file for file in below if results not in file.resolve().parents]
            usable = [file for file in below if file.suffix.lower() in SUFFIXES | VIDEOS | {PDF}]
            left_out.update(file.suffix.lower() or file.name for file in set(below) - set(usable))
            inputs |= {file: file.relative_to(path) for file in usable}
        else:
            inputs[path] = Path(path.name)
    if left_out:
        print(f'left out: {", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))}', file=sys.stderr)
    if not inputs:
        cure = '' if pdf.is_installed() else f'; {pdf.CURE}'
        kinds = ', '.join(sorted(SUFFIXES | VIDEOS | {PDF}))
        raise RequestError(f'no image or video ({kinds}) in {", ".join(map(str, paths))}{cure}')
    files = name_results(inputs)
    # The result would be written over an input, or beside it under its name.
    for file, stem in files.items():
        if not beside and results / stem in (file.resolve(), file.resolve().with_suffix('')):
            raise RequestError(f'--out {out}: the result of {file} could take its place; give another folder')
    return files


def name_results(inputs: dict[Path, Path]) -> dict[Path, Path]:
    """File -> unique path of its result, from its path in `inputs`, relative to the given folder.

    The path loses its suffix; it keeps it where another file would have the same result (`a.png` and `a.jpg`), and gets as many
    parent folders as needed where that is not enough (`x/a.png` and `y/a.png`). A file given twice occurs once.
    """
    once = {_absolute(file): file for file in inputs}.values()
    levels = dict.fromkeys(once, 0)
    # Lengthen the names that clash, until none does: full paths are unique.
    while True:
        files_of = defaultdict[Path, list[Path]](list)
        for file, level in levels.items():
            files_of[_result(file, inputs[file], level)].append(file)
        clashes = [file for files in files_of.values() if len(files) > 1 for file in files]
        if not clashes:
            return {file: stem for stem, (file,) in files_of.items()}
        for file in clashes:
            levels[file] += 1


def _result(file: Path, name: Path, level: int) -> Path:
    """Name of a result, with more of the path of `file` for each `level` from 0."""
    if is_camera(file):
        return Path(f'camera{file}.mp4')
    is_video = file.suffix.lower() in VIDEOS
    if level == 0:
        return name.with_suffix('.mp4' if is_video else '')
    # Without the root: results stay below `out`.
    parts = _absolute(file).parts[1:]
    name = Path(*parts[max(0, len(parts) - len(name.parts) - level + 1) :])
    return name.with_name(f'{name.name}.mp4') if is_video else name


def _absolute(file: Path) -> Path:
    return file if isinstance(file, StorePath) else Path(os.path.normpath(file.absolute()))


def _expand(paths: Sequence[Path]) -> Iterator[Path]:
    """Expand patterns (a shell leaves quoted ones alone) and `-` in `paths`. Raises RequestError for missing files."""
    for path in paths:
        if path == Path('-'):
            # Names may contain spaces, so one name per line.
            yield from _expand([parse_path(line.rstrip('\r\n')) for line in sys.stdin if line.strip()])
        elif isinstance(path, StorePath) and str(path).startswith('http') and not path.is_file():
            raise RequestError(f'{path}: there is no such file on that server, and web servers have no lists of files')
        elif path.exists() or is_camera(path):
            yield path
        elif ADDRESS.match(str(path)):
            raise RequestError(f'{path}: there is nothing at this address, or it is not one of {", ".join(SCHEMES)}')
        elif not any(character in str(path) for character in '*?['):
            neighbours = sorted(str(other) for other in path.parent.iterdir()) if path.parent.is_dir() else []
            near = did_you_mean(path, neighbours) or (f'; there are {", ".join(neighbours[:MOST_NAMED])}' if neighbours else '')
            raise RequestError(f'{path}: there is no such file or folder{near}')
        elif matches := sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))):
            yield from matches
        else:
            raise RequestError(f'{path}: no file or folder matches')


def is_camera(path: Path) -> bool:
    """True if a path is the number of a camera."""
    return str(path).isdecimal() and not path.exists()


def picture_file(file: Path, *, is_page: bool) -> Path | None:
    """The file if it is an image that other programs open, too; None if the image is a page of it."""
    return None if is_page or file.suffix.lower() == PDF else file


class Inputs:
    """Input files, processed one after another; the failure of one does not stop the others."""

    def __init__(self, files: dict[Path, Path], out: Path, verb: str) -> None:
        self.files, self.out, self.verb = files, out, verb
        self.failed = 0  # failed pictures, and files without any

    def each(self) -> Iterator[tuple[Path, Path]]:
        """Iterate over (file, path of its results without suffix), with a progress bar."""
        for file, stem in track(self.files.items(), self.verb):
            yield file, self.out / stem

    def pages(self, file: Path, stem: Path, work: Callable[[Image, Path], None]) -> int:
        """Call `work` with each picture in a file and the path of its results: `stem`, or `stem-p0001` of several.

        Returns the number of pictures that succeeded.
        """
        pages: list[Pages] = []
        if not self.attempt(file, lambda: pages.append(Pages(file))):
            return 0
        (count,) = map(len, pages)
        done = 0
        for number in range(count):
            place = stem.with_name(f'{stem.name}-p{number + 1:04}') if count > 1 else stem
            name = f'{file}, page {number + 1}' if count > 1 else file
            done += self.attempt(name, lambda number=number, place=place: work(pages[0].read(number), place))  # type: ignore[misc]
        return done

    def attempt(self, name: Path | str, work: Callable[[], object]) -> bool:
        """Run `work`; True if it succeeds. A failure is reported with `name` and counted."""
        try:
            work()
        except SampleError as error:
            print(f'skipped: {error}', file=sys.stderr)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong with one input, the others go on
            print(f'skipped: {name}: {describe_error(error) or type(error).__name__}', file=sys.stderr)
        else:
            return True
        self.failed += 1
        return False
