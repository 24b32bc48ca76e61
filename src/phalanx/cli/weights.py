"""`phalanx weights list|get`: lists published weights by name, and fetches them ahead of a run."""

import argparse
import json
import sys
from collections.abc import Sequence
from shlex import quote

from phalanx.cli.options import weights_parser
from phalanx.report.terminal import make_table, terminal
from phalanx.weights.fetching import FetchError
from phalanx.weights.finding import find, folder_of
from phalanx.weights.published import PUBLISHED


def command(words: Sequence[str]) -> int:
    """Exit status: 0 done, 1 weights could not be fetched, 2 the request was wrong."""
    given = weights_parser().parse_args(words or ['list'])
    return get(given) if given.command == 'get' else show(given)


def show(given: argparse.Namespace) -> int:
    rows = [
        {
            'name': name,
            'network': entry.network + ('' if entry.part == 'all' else f' ({entry.part})'),
            'trained on': entry.trained_on,
            'published': entry.figure,
            'licence': entry.licence,
            'here': 'yes' if (folder_of(entry.address) / 'facts.json').is_file() else '',
        }
        for name, entry in PUBLISHED.items()
    ]
    if given.json:
        print(json.dumps([{**row, 'address': PUBLISHED[row['name']].address} for row in rows]))
        return 0
    table = make_table(rows, overflow='fold')
    table.columns[0].no_wrap = True
    terminal().print(table)
    print('next: phalanx weights get NAME')
    return 0


def get(given: argparse.Namespace) -> int:
    failed = False
    for name in given.names:
        try:
            found = find(name)
        except FetchError as error:
            print(error, file=sys.stderr)
            failed = True
            continue
        print(found.path)
        for key, value in found.facts().items():
            print(f'  {key}: {value}')
        print(f'next: phalanx train RECIPE --set {quote(f"train.init_from={name}")}')
    return int(failed)
