"""`phalanx config RECIPE`: a resolved recipe, or the reference of its keys."""

import json
import sys
from collections.abc import Sequence
from shlex import quote

from phalanx.cli.notes import open_with_notes
from phalanx.cli.options import config_parser
from phalanx.config.arguments import parse_recipe_words, repeat_options
from phalanx.config.explain import explain_any
from phalanx.config.read import to_plain
from phalanx.config.show import to_yaml
from phalanx.engine.job import families_of
from phalanx.engine.schema import Recipe


def command(words: Sequence[str]) -> int:
    """Print the resolved recipe, each value with its origin, or with --explain the reference of its keys."""
    parser = config_parser()
    asked = parser.parse_intermixed_args(words)
    if asked.explain is not None:  # works without a recipe, and with a wrong one
        named = asked.recipe or next(iter(asked.words), None)
        schemas = {name: family.Keys for name, family in families_of(named).items()}
        print(explain_any(Recipe, schemas, asked.explain), end='')
        return 0
    given, recipe, assigned = parse_recipe_words(parser, words)
    job = open_with_notes(recipe, assigned)
    print(json.dumps(to_plain(job.resolved)) if given.json else to_yaml(job.resolved), end='\n' if given.json else '')
    if not given.json:  # beside the recipe, which may go to a file
        train = f'phalanx train {quote(recipe)}{repeat_options(assigned)}'
        print(f'next: {train}; --explain KEY shows the values that a key takes', file=sys.stderr)
    return 0
