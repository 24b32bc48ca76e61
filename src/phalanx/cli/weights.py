"""`phalanx weights list|get`: the weights that the originals publish, by name, and fetching them ahead of a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.config.arguments import Parser, add_json, add_offline
from phalanx.weights.fetching import FetchError
from phalanx.weights.finding import find, folder_of
from phalanx.weights.published import PUBLISHED

EXAMPLES = (
    'phalanx weights',
    'phalanx weights get ppyoloe_plus_crn_s_80e_coco',
    'phalanx weights get hf://OWNER/REPO@REVISION/model.safetensors',
    'phalanx train mine.yml --set train.init_from=ppyoloe_plus_crn_s_80e_coco    # fetches it too, when it is not there',
)


def command(words: Sequence[str]) -> int:
    """The exit status: 0 done, 1 something could not be fetched, 2 the request was wrong."""
    parser = Parser('phalanx weights', 'Lists the weights that can be named in train.init_from, and fetches them.', EXAMPLES)
    commands = parser.add_subparsers(dest='command')
    about = 'list the names: network, training data, published figure, licence (with --json also the address)'
    listing = commands.add_parser('list', help=about, description=about)
    add_json(listing)
    about = 'fetch weights into the cache, and print where they are'
    getting = commands.add_parser('get', help=about, description=about)
    getting.add_argument('names', metavar='NAME', nargs='+', help='a name of the list, an https:// or hf:// address')
    add_offline(getting)
    given = parser.parse_args(words or ['list'])
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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow='fold', no_wrap=column == 'name')
    for row in rows:
        table.add_row(*row.values())
    Console(width=None if sys.stdout.isatty() else 160).print(table)
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
    return int(failed)
