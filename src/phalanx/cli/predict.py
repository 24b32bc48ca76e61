"""`phalanx predict`: results of a trained run for images and videos."""

import json
import sys
from collections.abc import Sequence
from shlex import quote

from phalanx.cli.deploy_options import predict_parser
from phalanx.config.arguments import collect_assignments
from phalanx.config.read import to_plain
from phalanx.deploy.predict import predict_files
from phalanx.engine.job import open_job
from phalanx.report.readable import pluralize
from phalanx.system.errors import CheckpointError, RequestError, describe_error
from phalanx.weights.published import class_names


def command(words: Sequence[str]) -> int:
    """The exit status: 0 done, 1 when the weights or an image could not be read. Raises ConfigError or RequestError."""
    given = predict_parser().parse_args(words)
    job = open_job(given.run, collect_assignments(given))
    if given.threshold is not None:
        if 'shown_from' not in job.resolved.value:
            raise RequestError(
                f'--threshold: a {to_plain(job.resolved.value["task"])} has no objects with scores; leave it out'
            )
        if not 0 <= given.threshold <= 1:
            raise RequestError(f'--threshold: a score is between 0 and 1, got {given.threshold:g}')
        given.set.append(f'shown_from={given.threshold}')
        job = open_job(given.run, collect_assignments(given))
    data = job.resolved.value['data'].value
    if (names := class_names(given.weights or '')) and 'classes' in data and data['classes'].value is None:
        classes = json.dumps(names)  # published weights can predict where the data set that they were trained on is not
        job = open_job(given.run, [*collect_assignments(given), (f'data.classes={classes}', f'--weights {given.weights}')])

    try:
        images, frames, failed = predict_files(
            job, given.images, given.out, given.weights, given.save.split(',') if given.save else ()
        )
    except (CheckpointError, OSError, ValueError) as error:  # no weights; a folder that cannot be written to; no classes
        print(f'prediction failed: {describe_error(error)}', file=sys.stderr)
        return 1
    counts = [pluralize(images, 'image')] if images or not frames else []
    counts += [pluralize(frames, 'frame')] if frames else []
    unread = f'; {failed} failed' if failed else ''
    print(f'{" and ".join(counts)} predicted, results in {given.out}{unread}')
    if job.recipe.task == 'table':
        print('the cells are found, their text is not read: `phalanx read` reads text, the crops of --save crops, for example')
    if not failed and not given.weights:
        print(f'next: phalanx export {quote(given.run)}')
    return 1 if failed else 0
