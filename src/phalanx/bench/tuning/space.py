"""Search space: keys of a recipe with ranges or choices, as written after `--search`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.config.read import ConfigError, check_alternatives
from phalanx.engine.job import Job, open_job
from phalanx.system.errors import RequestError

Assignments = list[tuple[str, str]]  # `KEY=VALUE`, and the words of the command line, for messages
FORMS = 'KEY=1e-4..1e-2, KEY=log:1e-4..1e-2, KEY=8..64 (integers), KEY=a,b,c or KEY=[64,96]|[128,192]'


@dataclass(frozen=True)
class Dimension:
    """Key of the recipe, and the values to try: `choices`, as text, or a range with both ends."""

    key: str
    text: str  # as written
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    is_log: bool = False
    is_integer: bool = False

    def suggest(self, trial: Any) -> str:
        """Return the value of an Optuna trial, as text for an assignment."""
        if self.choices:
            return str(trial.suggest_categorical(self.key, self.choices))
        if self.is_integer:
            return str(trial.suggest_int(self.key, int(self.low), int(self.high), log=self.is_log))
        value = trial.suggest_float(self.key, self.low, self.high, log=self.is_log)
        return repr(min(max(float(f'{value:.3g}'), self.low), self.high))  # more digits say nothing, and nobody copies them

    def ends(self) -> list[str]:
        """Values whose validity stands for that of all: the choices, or both ends of the range."""
        if self.choices:
            return list(self.choices)
        return [str(int(end)) if self.is_integer else repr(end) for end in (self.low, self.high)]

    def assign(self, value: str) -> tuple[str, str]:
        return f'{self.key}={value}', f'--search {self.text}'


def parse_dimension(text: str) -> Dimension:
    """Parse one word of `--search`. Raises RequestError."""
    key, sign, values = text.partition('=')
    if not key or not sign or not values:
        raise RequestError(f'--search {text}: expected one of {FORMS}')
    is_log = values.startswith('log:')
    low, dots, high = values.removeprefix('log:').partition('..')
    if not dots:
        if is_log:
            raise RequestError(f'--search {text}: log needs a range, such as log:1e-4..1e-2')
        choices = tuple(choice.strip() for choice in values.split('|' if '|' in values else ','))
        if len(set(choices)) < max(2, len(choices)) or '' in choices:
            raise RequestError(f'--search {text}: needs at least two different values; a fixed one belongs after --set')
        return Dimension(key, text, choices)
    try:
        ends = float(low), float(high)
    except ValueError:
        raise RequestError(f'--search {text}: the ends of a range are numbers; expected one of {FORMS}') from None
    if not ends[0] < ends[1] or (is_log and ends[0] <= 0):
        raise RequestError(f'--search {text}: a range goes from a lower to a higher number{", above 0 with log" * is_log}')
    is_integer = all(end.strip().lstrip('+-').isdecimal() for end in (low, high))
    return Dimension(key, text, low=ends[0], high=ends[1], is_log=is_log, is_integer=is_integer)


def check_space(recipe: str, assignments: Assignments, space: Sequence[Dimension]) -> Job:
    """Open the recipe with each choice and each end of a range, and return the job without a search.

    Raises RequestError for a key that is searched twice or also set, and ConfigError with all invalid values.
    """
    keys = [dimension.key for dimension in space]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise RequestError(f'--search {twice[0]}: given twice')
    if both := [key for key in keys if any(text.partition('=')[0].strip() == key for text, _ in assignments)]:
        raise RequestError(f'--search {both[0]}: the key is also given after --set; leave one out')
    problems = []
    first = [dimension.assign(dimension.ends()[0]) for dimension in space]
    for place, dimension in enumerate(space):
        for value in dimension.ends():
            try:
                assigned = [*assignments, *first[:place], dimension.assign(value), *first[place + 1 :]]
                check_alternatives(assigned)
                open_job(recipe, assigned)
            except ConfigError as error:
                problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems)
    return open_job(recipe, assignments)
