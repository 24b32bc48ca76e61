"""Results of a trained run for image and video files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from phalanx.data.image import read_image
from phalanx.data.samples import SampleError
from phalanx.data.video import VIDEOS, Video, VideoWriter
from phalanx.engine.runs import Job
from phalanx.engine.trained import Trained
from phalanx.system.errors import RequestError

SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp'}


class Done(NamedTuple):
    """How many images and frames of videos were predicted, and how many files could not be read."""

    images: int
    frames: int
    failed: int


def predict_files(job: Job, given: Sequence[Path], out: Path, weights: str | None) -> Done:
    """The results lie in `out`, named as the images; of a video it is a video with the results drawn on each frame.

    Raises RequestError when there is no image or a result would take its place, CheckpointError when there are no weights.
    """
    files = list_files(given, out)
    predict = Trained(job, weights, job.recipe.device)
    print(f'weights: {predict.weights}', file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    images = frames = failed = 0
    for file, stem in track(files.items(), 'predicting', console=Console(stderr=True), transient=True):
        (out / stem).parent.mkdir(parents=True, exist_ok=True)
        try:
            if file.suffix.lower() in VIDEOS:
                frames += predict_video(predict, file, out / stem)
                continue
            image = read_image(file)
        except SampleError as error:
            print(f'skipped: {error}', file=sys.stderr)
            failed += 1
            continue
        job.task.save(predict(image), image, out / stem)
        images += 1
    return Done(images, frames, failed)


def predict_video(predict: Trained, file: Path, out: Path) -> int:
    """Writes the video with the results drawn on its frames; how many these are. Raises SampleError and OSError."""
    video = Video(file)
    with VideoWriter(out, video.rate) as written:
        for frame in video:
            written.write(predict.draw(frame, predict(frame)))
    return written.frames


def list_files(given: Sequence[Path], out: Path) -> dict[Path, Path]:
    """The image and video files among files, folders and patterns (`photos/*.jpg`) -> the path of their results below the
    folder `out`: of an image without suffix, of a video that of the video.

    What lies in `out` already are results, no images. Raises RequestError for what does not exist, for nothing at all, for two
    images whose results would have one name, and for an image that its own result could replace.
    """
    results = out.resolve()
    found: dict[Path, Path] = {}
    for path in _expanded(given):
        if path.is_dir():
            below = sorted(file for file in path.rglob('*') if file.suffix.lower() in SUFFIXES | VIDEOS)
            if path.resolve() != results:
                below = [file for file in below if results not in file.resolve().parents]
            found |= {file: _result(file, file.relative_to(path)) for file in below}
        elif path.exists():
            found[path] = _result(path, Path(path.name))
        else:
            raise RequestError(f'{path}: there is no such file or folder')
    if not found:
        raise RequestError(f'no image or video ({", ".join(sorted(SUFFIXES | VIDEOS))}) in {", ".join(map(str, given))}')
    taken: dict[Path, Path] = {}
    for file, stem in found.items():
        if stem in taken:
            raise RequestError(f'the results of {taken[stem]} and {file} would both be named {stem}; predict them separately')
        taken[stem] = file
        if results / stem in (file.resolve(), file.resolve().with_suffix('')):
            raise RequestError(f'--out {out}: the result of {file} could take its place; give another folder')
    return found


def _expanded(given: Sequence[Path]) -> Iterator[Path]:
    """`given` with what patterns stand for, which a shell leaves alone in quotes. Raises RequestError for one of nothing."""
    for path in given:
        if path.exists() or not any(sign in str(path) for sign in '*?['):
            yield path
        elif matches := sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))):
            yield from matches
        else:
            raise RequestError(f'{path}: no file or folder has such a name')


def _result(file: Path, name: Path) -> Path:
    """Where the result of `file` is, as `list_files` gives it."""
    return name.with_suffix('.mp4' if file.suffix.lower() in VIDEOS else '')
