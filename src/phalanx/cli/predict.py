"""`phalanx predict`: results of a trained run for images and videos."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from shlex import quote

from phalanx.cli.notes import print_notes
from phalanx.cli.predict_options import MODEL, parse_run, predict_parser
from phalanx.config.arguments import repeat_options
from phalanx.deploy.cells import CellTask, Recognise
from phalanx.deploy.predict import predict_files
from phalanx.engine.job import Job, open_job
from phalanx.paddle.options import IMAGES, take_assigned, take_weights
from phalanx.report.readable import pluralize
from phalanx.system.errors import RequestError, describe_error
from phalanx.system.paths import parse_path
from phalanx.weights.published import class_names

UNLOCATED = 'the recipe learns no places of cells, which reading needs (annotate boxes of cells for that)'


def command(words: Sequence[str]) -> int:
    """The exit status: 0 done, 1 when an image could not be read. Raises ConfigError, RequestError or CheckpointError."""
    given, run, images, assigned = parse_run(predict_parser(), words)
    named, assigned = take_assigned(take_weights(given, assigned), IMAGES)
    images += [*named, given.images] if given.images else named
    if not images:
        raise RequestError('which images? give files or folders after the run')
    job = open_job(run, assigned)
    if given.threshold is not None:
        if 'shown_from' not in job.resolved.value:
            cures = {'text_detection': f'for texts, --set post_processing.box_threshold={given.threshold:g}'}
            cure = cures.get(job.recipe.task, f'a {job.recipe.task} has no objects with scores; leave it out')
            raise RequestError(f'--threshold: {cure}')
        if not 0 <= given.threshold <= 1:
            raise RequestError(f'--threshold: a score is between 0 and 1, got {given.threshold:g}')
        assigned = [*assigned, (f'shown_from={given.threshold}', f'--threshold {given.threshold:g}')]
        job = open_job(run, assigned)
    data = job.resolved.value['data'].value
    if (names := class_names(given.weights or '')) and 'classes' in data and data['classes'].value is None:
        classes = json.dumps(names)  # published weights can predict where the data set that they were trained on is not
        job = open_job(run, [*assigned, (f'data.classes={classes}', f'--weights {given.weights}')])

    print_notes(job)
    try:
        save = given.save.split(',') if given.save else ()
        images_read, frames, failed = predict_files(
            job, [parse_path(image) for image in images], given.out, given.weights, save, _open_recogniser(job, given.rec)
        )
    except (OSError, ValueError) as error:  # a folder that cannot be written to; no classes
        print(f'prediction failed: {describe_error(error)}', file=sys.stderr)
        return 1
    counts = [pluralize(images_read, 'image')] if images_read or not frames else []
    counts += [pluralize(frames, 'frame')] if frames else []
    unread = f'; {failed} failed' if failed else ''
    print(f'{" and ".join(counts)} predicted, results in {given.out}{unread}')
    if isinstance(job.task, CellTask) and not given.rec:
        advice = f'--rec MODEL reads it ({MODEL})' if job.task.locates_cells else UNLOCATED
        print(f'the text of the cells is not read: {advice}')
    if not failed and not given.weights:
        print(f'next: phalanx export {quote(run)}{repeat_options()}')
    return 1 if failed else 0


def _open_recogniser(job: Job, name: str | None) -> Recognise | None:
    """Open the recogniser of --rec, for the cells of tables. Raises RequestError if the recipe has none."""
    if name is None:
        return None
    if not isinstance(job.task, CellTask):
        raise RequestError(f'--rec: reads the cells of tables, and a {job.recipe.task} has none; leave it out')
    if not job.task.locates_cells:
        raise RequestError(f'--rec: {UNLOCATED}; leave it out')
    from phalanx.deploy.read import open_model, recognise

    return partial(recognise, open_model('rec', name, job.recipe.device))
