"""`phalanx runs`: table of the runs in a folder."""

import json
import time
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from phalanx.cli.run_options import runs_parser
from phalanx.engine.overview import RunFacts, differing_keys, find_runs
from phalanx.report.readable import format_duration, format_number, format_percent
from phalanx.report.terminal import make_table, terminal

SHOWN = 6  # differences of a run in the table; `--json` has all


def command(words: Sequence[str]) -> int:
    """Print the runs, the earliest first."""
    given = runs_parser().parse_args(words)
    runs, unreadable = find_runs(given.folder)
    differences = differing_keys(runs)
    if given.json:
        rows = [{**run.as_json(), 'differences': own} for run, own in zip(runs, differences, strict=True)]
        print(json.dumps({'runs': rows, 'unreadable': unreadable}))
        return 0
    terminal().print(make_table([_row(run, own) for run, own in zip(runs, differences, strict=True)], overflow='fold'))
    for reason in unreadable:
        print(f'not listed: {reason}')
    if len(runs) > 1:
        print(f'next: phalanx compare {" ".join(quote(str(run.folder)) for run in runs[-2:])}')
    return 0


def _row(run: RunFacts, differences: Mapping[str, Any]) -> dict[str, str]:
    score, total = run.score, f' of {format_number(run.total_steps)}' if run.total_steps else ''
    listed = [f'{key}={value}' for key, value in differences.items()]
    more = f'and {len(listed) - SHOWN} more' if len(listed) > SHOWN else ''
    return {
        'run': str(run.folder),
        'recipe': run.recipe,
        'differences': '\n'.join([*listed[:SHOWN], *filter(None, [more])]),
        'best': f'{score.metric} {format_number(score.value)}' if score else '',
        'state': f'{run.state}, step {format_number(run.step)}{total}',
        'time': format_duration(run.seconds),
        'goodput': format_percent(run.goodput) if run.goodput is not None else '',
        'begun': time.strftime('%Y-%m-%d %H:%M', time.localtime(run.begun)),
        'host': ', '.join(run.hosts[:2]) + (f' and {len(run.hosts) - 2} more' if len(run.hosts) > 2 else ''),
    }
