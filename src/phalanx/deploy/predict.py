"""Results of a trained run for image files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from phalanx.data.image import read_image
from phalanx.data.samples import SampleError
from phalanx.engine.runs import Job
from phalanx.engine.trained import Trained
from phalanx.system.errors import RequestError

SUFFIXES = {'.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp'}


def predict_images(job: Job, images: Sequence[Path], out: Path, weights: str | None) -> tuple[int, int]:
    """How many images were predicted and how many could not be read; the results lie in `out`, named as the images.

    Raises RequestError when there is no image or a result would take its place, CheckpointError when there are no weights.
    """
    files = list_images(images, out)
    predict = Trained(job, weights, job.recipe.device)
    print(f'weights: {predict.weights}', file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for file, stem in track(files.items(), 'predicting', console=Console(stderr=True), transient=True):
        try:
            image = read_image(file)
        except SampleError as error:
            print(f'skipped: {error}', file=sys.stderr)
            failed += 1
            continue
        (out / stem).parent.mkdir(parents=True, exist_ok=True)
        job.task.save(predict(image), image, out / stem)
    return len(files) - failed, failed


def list_images(given: Sequence[Path], out: Path) -> dict[Path, Path]:
    """The image files among files and folders -> the path, without suffix, of their results below the folder `out`.

    What lies in `out` already are results, no images. Raises RequestError for what does not exist, for nothing at all, for two
    images whose results would have one name, and for an image that its own result could replace.
    """
    results = out.resolve()
    found: dict[Path, Path] = {}
    for path in given:
        if path.is_dir():
            below = sorted(file for file in path.rglob('*') if file.suffix.lower() in SUFFIXES)
            if path.resolve() != results:
                below = [file for file in below if results not in file.resolve().parents]
            found |= {file: file.relative_to(path).with_suffix('') for file in below}
        elif path.exists():
            found[path] = Path(path.stem)
        else:
            raise RequestError(f'{path}: there is no such file or folder')
    if not found:
        raise RequestError(f'no image ({", ".join(sorted(SUFFIXES))}) in {", ".join(map(str, given))}')
    taken: dict[Path, Path] = {}
    for file, stem in found.items():
        if stem in taken:
            raise RequestError(f'the results of {taken[stem]} and {file} would both be named {stem}; predict them separately')
        taken[stem] = file
        if file.resolve().with_suffix('') == results / stem:
            raise RequestError(f'--out {out}: the result of {file} could take its place; give another folder')
    return found
