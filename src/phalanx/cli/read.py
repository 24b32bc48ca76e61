"""`phalanx read`: the texts of pages, in reading order."""

import sys
from collections.abc import Sequence

from phalanx.cli.deploy_options import read_parser
from phalanx.data.video import VIDEOS
from phalanx.deploy.inputs import is_camera, list_files
from phalanx.deploy.pages import WRITERS
from phalanx.deploy.predict import check_ways
from phalanx.deploy.read import Reader, read_files
from phalanx.report.readable import pluralize
from phalanx.runtime import ArtifactError
from phalanx.system.errors import CheckpointError, RequestError


def command(words: Sequence[str]) -> int:
    """The exit status: 0 done, 1 when a page or a model could not be read. Raises RequestError."""
    given = read_parser().parse_args(words)
    save = given.save.split(',') if given.save else ()
    check_ways(save, WRITERS)
    listed = list_files(given.pages, given.out).items()
    pages = {file: stem for file, stem in listed if not is_camera(file) and file.suffix.lower() not in VIDEOS}
    if not pages:
        raise RequestError('a video is not a page: give images')
    try:
        reader = Reader(
            given.det,
            given.rec,
            language=given.lang,
            threshold=given.threshold,
            upside_down=given.upside_down,
            max_side=given.max_side,
            device=given.device,
        )
        print(f'models: {reader.names[0]}, {reader.names[1]}', file=sys.stderr)
        lines, done, failed = read_files(reader, pages, given.out, save)
    except (ArtifactError, CheckpointError, OSError, ValueError) as error:
        print(f'reading failed: {error}', file=sys.stderr)
        return 1
    unread = f'; {pluralize(failed, "page")} could not be read' if failed else ''
    print(f'{pluralize(lines, "line")} on {pluralize(done, "page")}, results in {given.out}{unread}')
    return 1 if failed else 0
