"""`phalanx predict`: the results of a trained model for images and videos."""

import json
import sys
from collections.abc import Sequence

from phalanx.cli.options import predict_parser
from phalanx.config.arguments import assignments
from phalanx.config.read import plain
from phalanx.deploy.predict import predict_files
from phalanx.engine.runs import open_job
from phalanx.report.readable import counted
from phalanx.system.errors import CheckpointError, RequestError, told
from phalanx.weights.published import class_names


def command(words: Sequence[str]) -> int:
    """Writes the results of a trained model for images."""
    given = predict_parser().parse_args(words)
    job = open_job(given.run, assignments(given))
    if given.threshold is not None:
        if 'shown_from' not in job.resolved.value:
            raise RequestError(f'--threshold: a {plain(job.resolved.value["task"])} has no objects with scores; leave it out')
        if not 0 <= given.threshold <= 1:
            raise RequestError(f'--threshold: a score is between 0 and 1, got {given.threshold:g}')
        given.set.append(f'shown_from={given.threshold}')
        job = open_job(given.run, assignments(given))
    data = job.resolved.value['data'].value
    if (names := class_names(given.weights or '')) and 'classes' in data and data['classes'].value is None:
        classes = json.dumps(names)  # published weights can predict where the data set that they were trained on is not
        job = open_job(given.run, [*assignments(given), (f'data.classes={classes}', f'--weights {given.weights}')])

    try:
        done = predict_files(job, given.images, given.out, given.weights, given.save.split(',') if given.save else ())
    except (CheckpointError, OSError, ValueError) as error:  # no weights; a folder that cannot be written to; no classes
        print(f'prediction failed: {told(error)}', file=sys.stderr)
        return 1
    counts = [counted(done.images, 'image')] if done.images or not done.frames else []
    counts += [counted(done.frames, 'frame')] if done.frames else []
    unread = f'; {done.failed} could not be read' if done.failed else ''
    print(f'{" and ".join(counts)} predicted, results in {given.out}{unread}')
    return 1 if done.failed else 0
