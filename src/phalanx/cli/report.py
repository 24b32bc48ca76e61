"""`phalanx report`: rebuilds the page of a run folder, also during the run."""

import sys
from collections.abc import Sequence
from shlex import quote

from phalanx.cli.run_options import report_parser
from phalanx.engine.job import fetch_run
from phalanx.report.page import write_page
from phalanx.system.errors import RequestError, describe_error


def command(words: Sequence[str]) -> int:
    """Rebuild report.html; exit status 1 if it cannot be written."""
    given = report_parser().parse_args(words)
    if not any((given.run / name).is_file() for name in ('journal.jsonl', 'metrics.jsonl')):
        raise RequestError(f'{given.run}: is not a run folder (no journal.jsonl or metrics.jsonl)')
    try:
        print(write_page(fetch_run(given.run), page=given.page))  # of a run in a bucket, the page is on this machine
        if (given.run / 'checkpoints').is_dir():  # not copied along with a run that somebody else sent
            print(f'next: phalanx eval {quote(str(given.run))} --page eval.html')
    except OSError as error:
        cure = '; --page FILE writes it elsewhere' if error.errno and not given.page else ''
        print(f'the page could not be written: {describe_error(error)}{cure}', file=sys.stderr)
        return 1
    return 0
