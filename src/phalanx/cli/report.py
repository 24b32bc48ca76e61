"""`phalanx report`: the page of a run folder, also during the run."""

import sys
from collections.abc import Sequence

from phalanx.cli.options import report_parser
from phalanx.report.page import write_page
from phalanx.system.errors import RequestError, describe_error


def command(words: Sequence[str]) -> int:
    """Rebuilds the page of a run folder, also during the run."""
    given = report_parser().parse_args(words)
    if not any((given.run / name).is_file() for name in ('journal.jsonl', 'metrics.jsonl')):
        raise RequestError(f'{given.run}: is not a run folder (it has neither journal.jsonl nor metrics.jsonl)')
    try:
        print(write_page(given.run))
    except OSError as error:
        print(f'the page could not be written: {describe_error(error)}', file=sys.stderr)
        return 1
    return 0
