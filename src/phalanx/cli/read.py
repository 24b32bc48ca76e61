"""`phalanx read`: the texts of pages, in reading order."""

import sys
from collections.abc import Sequence

from phalanx.cli.deploy_options import read_parser
from phalanx.data import pdf
from phalanx.data.video import VIDEOS
from phalanx.deploy.inputs import is_camera, list_files
from phalanx.deploy.pages import WRITERS
from phalanx.deploy.read_files import SUMMARY, Options, describe_pages, open_reader, open_tables, read_files
from phalanx.report.readable import pluralize
from phalanx.runtime import ArtifactError
from phalanx.system.cores import count_cores
from phalanx.system.errors import RequestError, describe_error
from phalanx.system.stops import interrupting_signal


def command(words: Sequence[str]) -> int:
    """The exit status: 0 done, 1 when a page could not be read. Raises ConfigError, RequestError or CheckpointError."""
    given = read_parser().parse_args(words)
    # check the request before models are loaded
    save = given.save.split(',') if given.save else ()
    WRITERS.check(save)
    if 'pdf' in save and not pdf.is_installed():
        raise RequestError('--save pdf: needs pypdfium2: pip install "phalanx-vision[pdf]"')
    if not given.tables and (given.layout or given.table):
        raise RequestError('--layout and --table: name the models of --tables; add it')
    listed = list_files(given.pages, given.out, beside=WRITERS.are_labels(save)).items()
    pages = {file: stem for file, stem in listed if not is_camera(file) and file.suffix.lower() not in VIDEOS}
    if not pages:
        raise RequestError('a video is not a page: give images')
    options = Options(
        det=given.det,
        rec=given.rec,
        language=given.lang,
        threshold=given.threshold,
        upside_down=given.upside_down,
        use_textline_orientation=given.use_textline_orientation,
        cls=given.cls,
        max_side=given.max_side,
        device=given.device,
        threads=max(1, count_cores() // given.workers),
        save=tuple(save),
        tables=given.tables,
        layout=given.layout,
        table=given.table,
    )
    try:
        tables = open_tables(options)
        names = [*open_reader(options).names, *(tables.names if tables else ())]
        print(f'models: {" and ".join(names)}', file=sys.stderr)
        done, there, failed = read_files(options, pages, given.out, given.workers)
    except (ArtifactError, OSError, ValueError) as error:
        print(f'reading failed: {describe_error(error)}', file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        number = interrupting_signal(stop)
        print(f'phalanx: stopped by {number.name}; the same command goes on from there', file=sys.stderr)
        return 128 + number
    before = f' ({there:,} of them read before)' if there else ''
    unread = f'; {pluralize(failed, "page")} could not be read' if failed else ''
    print(f'{describe_pages(done)}{before}, results in {given.out}, summary in {given.out / SUMMARY}{unread}')
    if not failed:
        print('next: if lines are read wrongly, phalanx new DIR with such lines and their texts, and then --rec runs/DIR here')
    return 1 if failed else 0
