"""Results of a trained run for images and videos, from files, a list of them, or a camera."""

import contextlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from phalanx.data.samples import Image
from phalanx.data.video import VIDEOS, Video, VideoWriter
from phalanx.deploy.cells import Recognise, read_cells
from phalanx.deploy.inputs import Inputs, is_camera, list_files, picture_file
from phalanx.engine.job import Job
from phalanx.engine.trained import Trained
from phalanx.families.writing import Writers
from phalanx.report.terminal import track


def predict_files(
    job: Job, paths: Sequence[Path], out: Path, weights: str | None, ways: Sequence[str], recognise: Recognise | None = None
) -> tuple[int, int, int]:
    """Predict files and write the results; return the numbers of images, of video frames, and of failed files or pages.

    Results are in `out`, named after the images, in the formats `ways` (`Task.writers`). Of a video, or of camera N (the path
    `N`), `pictures` is a video with the results drawn on each frame; other formats are written per frame. `recognise` reads the
    cells of tables. Raises RequestError if there is no image or a result would replace one, CheckpointError without weights.
    """
    writers = job.task.writers
    writers.check(ways)
    files = list_files(paths, out, beside=writers.are_labels(ways))
    predict = Trained(job, weights, job.recipe.device)
    print(f'weights: {predict.weights}', file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    inputs, images, frames = Inputs(files, out, 'predicting'), 0, 0

    def write(file: Path, image: Image, stem: Path) -> None:
        result = predict(image)
        if recognise is not None:
            result = replace(result, texts=read_cells(image, result.boxes, recognise))
        writers.write(result, image, stem, ways, picture_file(file, is_page=stem != out / files[file]))

    def write_bands(file: Path, stem: Path) -> None:
        write(file, job.task.load_image(file), stem)

    def write_video(file: Path, stem: Path) -> None:
        nonlocal frames
        # A camera has no end and no frame rate of its own.
        camera = is_camera(file)
        video = Video(int(file.name) if camera else file)
        frames += (count := predict_video(predict, writers, video, video.rate, stem, ways, endless=camera))
        if count < video.stated:
            cause = 'the file was cut off, or trimmed without encoding it again'
            print(f'note: {file}: {count} frames, and its header states {video.stated}: {cause}', file=sys.stderr)

    for file, stem in inputs.each():
        stem.parent.mkdir(parents=True, exist_ok=True)
        if is_camera(file) or file.suffix.lower() in VIDEOS:
            inputs.attempt(file, partial(write_video, file, stem))
        elif job.task.bands:
            images += inputs.attempt(file, partial(write_bands, file, stem))
        else:
            images += inputs.pages(file, stem, partial(write, file))
    return images, frames, inputs.failed


def predict_video(
    predict: Trained, writers: Writers, frames: Iterable[Image], rate: float, out: Path, ways: Sequence[str], *, endless: bool
) -> int:
    """Write the results of `frames`; returns their number. An `endless` source, as a camera, ends with Ctrl-C.

    `out` is a video of `rate` frames per second with the results drawn; files in other formats are in a folder of that name.
    Raises OSError.
    """
    # Ctrl-C is the normal end of a camera; the video is still completed.
    ends = contextlib.suppress(KeyboardInterrupt) if endless else contextlib.nullcontext()
    of_frames = [way for way in ways if way != 'pictures']
    folder, count = out.with_suffix(''), 0
    if of_frames:
        folder.mkdir(parents=True, exist_ok=True)
    with VideoWriter(out, rate) as written, ends:
        for count, frame in enumerate(track(frames, out.name), 1):
            result = predict(frame)
            if of_frames:
                writers.write(result, frame, folder / f'{count:06}', of_frames)
            # Without `ways`, pictures are the default.
            if not ways or 'pictures' in ways:
                written.write(predict.draw(frame, result))
    return count
