"""Parts shared by the dialects: reading a configuration section by section, and rules common to several projects.

Every key of a configuration is used, ignored with a reason, or reported as a problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.config.read import Node, did_you_mean, load_yaml, to_plain


@dataclass
class Reading:
    """Problems and notes collected while one configuration is translated."""

    project: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def default(self, value: Any) -> Node:
        """Node of a default of the original, for a key that its configuration leaves out."""
        return Node(value, f"{self.project}'s default", None if isinstance(value, list | dict | None) else str(value))

    def tree(self, value: Any) -> Node:
        """Turn a plain value, which may contain Nodes, into a tree of Nodes. Anything else is a default of the original."""
        if isinstance(value, Node):
            return value
        if isinstance(value, Mapping):
            return Node({key: self.tree(child) for key, child in value.items() if child is not None}, self.default(None).origin)
        if isinstance(value, list | tuple):
            return Node([self.tree(child) for child in value], self.default(None).origin)
        return self.default(value)


def read_file(path: Path, reading: Reading) -> Node:
    """Read the configuration at `path`, which has no bases. Raises ConfigError."""
    return load_yaml(path, reading.notes)


MOST_DECAYS = 10_000  # of the learning rate
MOST_CLASSES = 254  # of a label map
REQUIRED = object()  # in place of a default: the original has none
DEVICES = ('xpu', 'npu', 'mlu', 'gcu', 'iluvatar_gpu', 'metax_gpu')
IGNORED_IN_ALL = {  # keys without effect in all projects, with the reason
    **{f'use_{device}': 'Phalanx knows CUDA devices and CPUs' for device in DEVICES},
    'to_static': 'set train.compile, which serves the same purpose, speed',
    'find_unused_parameters': 'every parameter takes part in every step',
    'uniform_output_enabled': 'the run folder always has the same form',
    'print_mem_info': 'peak memory is always reported',
    'log_ranks': 'every rank writes its own log',
    'profiler_options': '`phalanx bench` measures',
}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Form of the configurations of one project, and their translation."""

    project: str
    keys: Set[str]  # of the top level; an assignment below one of them sets the original
    bases: str | None = None  # key that names the base files
    recognised_by: tuple[set[str], ...]  # sets of keys; a configuration contains at least one whole set
    read: Callable[[Path, Reading], Node] = read_file  # a file merged with its bases
    translate: Callable[[Node, Reading], Node]  # into a recipe; problems go into the Reading
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of its train.py, as assignments to its own keys
    evaluates_on_request: bool = True  # its train.py evaluates only with --do_eval or --eval
    differs: tuple[str, ...]  # deliberate differences from this project, besides GLOBAL_MEANS


class Section:
    """Mapping whose keys are taken one by one; `end` reports the keys that were not taken, also in the sections inside."""

    def __init__(self, node: Node, path: str, reading: Reading) -> None:
        self.node, self.path, self.reading = node, path, reading
        self.left: dict[str, Node] = {}
        self.asked: set[str] = set()
        self.within: list[Section] = []
        if isinstance(node.value, dict):
            self.left = dict(node.value)
        elif node.value is not None:  # `Normalize:` without anything is an empty mapping
            self.report(node, None, f'expected a mapping of keys, got {to_plain(node)!r}')

    def take(self, key: str, default: Any = None) -> Node:
        """Take the value of `key`, or the `default` of the original."""
        self.asked.add(key)
        return self.left.pop(key) if key in self.left else self.reading.tree(default)

    def peek(self, *keys: str) -> Node | None:
        """Value at the path `keys`, without taking it; None if there is none."""
        node: Node | None = Node(self.left, '')
        for key in keys:
            node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
        return node

    def has(self, key: str) -> bool:
        """True if `key` is present and not null."""
        self.asked.add(key)
        return key in self.left and self.left[key].value is not None

    def require(self, key: str) -> Node:
        if key not in self.left:
            self.report(self.node, key, f'missing; {self.reading.project} needs it')
        return self.take(key)

    def section(self, key: str) -> Section:
        """Take the mapping under `key`; an empty one where it is missing or null."""
        node = self.left[key] if key in self.left else Node({}, self.node.origin)
        self.take(key)
        return self.open(node, key)

    def open(self, node: Node, key: str) -> Section:
        """Open the mapping `node` at `key`; `end` of this section ends it too."""
        self.within.append(Section(node, self.key_path(key), self.reading))
        return self.within[-1]

    def items(self, key: str) -> list[Node]:
        """Take the list under `key`."""
        node = self.take(key, [])
        if isinstance(node.value, list):
            return node.value
        self.report(node, key, f'expected a list, got {to_plain(node)!r}')
        return []

    def sections(self, key: str) -> list[Section]:
        """Take the mappings in the list under `key`."""
        return [self.open(node, f'{key}[{place}]') for place, node in enumerate(self.items(key))]

    def named_items(self, key: str) -> list[tuple[str, Section]]:
        """Take a list of items such as `- CTCLoss: {weight: 1}`: pairs of their name and the section under it."""
        found = []
        for place, node in enumerate(self.items(key)):
            if isinstance(node.value, dict) and len(node.value) == 1:
                ((name, under),) = node.value.items()
                found.append((name, self.open(under, f'{key}[{place}].{name}')))
            else:
                self.report(node, f'{key}[{place}]', f'expected one name with its options, got {to_plain(node)!r}')
        return found

    def string(self, key: str, default: str | None = None) -> Node:
        """Take the value of `key`, a string. Anything else is reported and becomes the empty string."""
        is_reported = default is not None or key not in self.left
        node = self.require(key) if default is None else self.take(key, default)
        if isinstance(node.value, str):
            return node
        if node.value is not None or not is_reported:
            self.report(node, key, f'expected a string, got {to_plain(node)!r}')
        return Node('', node.origin, '')

    def number(self, key: str, default: float | None = None) -> float:
        """Take the value of `key`, a number. Anything else is reported and becomes 1."""
        is_reported = default is None and key not in self.left
        node = self.require(key) if default is None else self.take(key, default)
        number = as_number(node)
        if number is None:
            if not is_reported:
                self.report(node, key, f'expected a number, got {to_plain(node)!r}')
            return 1.0
        return number

    def count(self, key: str) -> Node:
        """Take the value of `key`, a number of at least 1."""
        is_reported = key not in self.left
        node = self.require(key)
        if not is_reported and (as_number(node) or 0) < 1:
            self.report(node, key, f'expected a number from 1 on, got {to_plain(node)!r}')
        return node

    def one_of(self, key: str, *allowed: Any) -> Node:
        """Take the value of `key`, by default the first of those `allowed`; other values are reported."""
        node = self.take(key, allowed[0])
        value = to_plain(node)
        if value not in allowed and str(value) not in map(str, allowed):
            shown = ' or '.join('none' if option is None else str(option) for option in allowed)
            self.report(node, key, f'{value!r} has no counterpart in Phalanx, which knows only {shown}')
        return node

    def expect_defaults(self, values: Mapping[str, Any]) -> None:
        """Take keys that must have their default `values`."""
        for key, value in values.items():
            self.one_of(key, value)

    def expect(self, values: Mapping[str, Any]) -> None:
        """Take keys that must be present with these `values`, since the default of the original has no counterpart here."""
        for key, value in values.items():
            if key not in self.left:
                self.report(self.node, key, f'missing; Phalanx knows nothing but {value}')
            self.one_of(key, value)

    def expect_same(self, key: str, other: Node, whose: str) -> None:
        """Take `key`, which the original has in two places and Phalanx in one: both must agree."""
        node = self.take(key, to_plain(other))
        if to_plain(node) != to_plain(other):
            self.report_other(node, key, other, whose)

    def report_other(self, node: Node, key: str, other: Node, whose: str) -> None:
        text = f'{to_plain(node)!r} is not that of {whose}, {to_plain(other)!r}; Phalanx has one for both'
        self.report(node, key, text)

    def expect_options(
        self, key: str | None, options: Mapping[str, Any], others: Mapping[str, Any], text: str, one: str = 'one'
    ) -> None:
        """Report `text` if two sets of options differ, of both splits; an option that is None counts as missing."""
        first, second = ({k: to_plain(v) for k, v in each.items() if v is not None} for each in (options, others))
        if first != second:
            self.report(self.node, key, f'{text}; Phalanx has {one} for both')

    def ignore(self, *keys: str, reason: str) -> None:
        """Take those `keys` that are present, and note the `reason` why they have no effect."""
        for key in keys:
            if self.has(key):
                self.reading.notes.append(f'{self.left[key].origin}: {self.key_path(key)} is ignored: {reason}')
            self.left.pop(key, None)

    def assume(self, key: str, value: Any, reason: str) -> None:
        """Take `key`, which is always `value` here, and note the `reason` why another value has no effect."""
        if self.has(key) and to_plain(self.left[key]) != value:
            self.ignore(key, reason=reason)
        self.left.pop(key, None)

    def counterpart(self, node: Node, key: str, known: Mapping[str, Any]) -> Node:
        """Look up the value `node` of `key` in `known`; a value without an entry is reported."""
        if str(node.value) not in known:
            self.report_value(node, key, known)
        return with_value(node, known.get(str(node.value), ''))

    def weights(self, key: str) -> Node | None:
        """Take the weights that `key` names, a file or an address; None when it names none."""
        node = self.take(key)
        return node if node.value else None

    def give_up(self) -> None:
        """Take all remaining keys of a section without a counterpart, which is reported already."""
        self.left.clear()

    def end(self) -> None:
        """Report every key that was not taken, also in the sections inside."""
        for section in self.within:
            section.end()
        for key, node in self.left.items():
            hint = did_you_mean(key, self.asked) or f' (known: {", ".join(sorted(self.asked))})'
            self.report(node, key, f'not known here{hint}')

    def to_node(self, keys: Mapping[str, Any]) -> Node:
        """Node with the mapping `keys` (without those that are None) and the origin of this section."""
        first = {'name': keys['name']} if 'name' in keys else {}  # first, as people write it
        return Node(self.reading.tree({**first, **keys}).value, self.node.origin)

    def key_path(self, key: str) -> str:
        return f'{self.path}.{key}' if self.path else key

    def report(self, node: Node, key: str | None, text: str) -> None:
        """Report a problem with `key`, whose value is `node`; without a key, with the section itself."""
        self.reading.problems.append(f'{node.origin}: {self.path if key is None else self.key_path(key)}: {text}')

    def note(self, node: Node, key: str, text: str) -> None:
        self.reading.notes.append(f'{node.origin}: {self.key_path(key)}: {text}')

    def report_value(self, node: Node, key: str, known: Iterable[str]) -> None:
        """Report a value of `key` without a counterpart, with the `known` ones."""
        if node.value in (None, ''):  # reported already
            return
        hint = did_you_mean(node.value, known, cutoff=0.8)
        self.report(node, key, f'{to_plain(node)!r} has no counterpart in Phalanx{hint} (it has {", ".join(known)})')

    def report_part(self, node: Node, key: str, whole: object, part: str, known: Iterable[str]) -> None:
        """Report a part of a network without a counterpart, with the `known` ones."""
        message = f'{whole} with the {part} {to_plain(node)!r} has no counterpart in Phalanx (it has {", ".join(known)})'
        self.report(node, key, message)

    def reject_value(self, node: Node, key: str, known: Iterable[str]) -> None:
        """Report the value as `report_value` does, and give the section up."""
        self.report_value(node, key, known)
        self.give_up()

    def reject(self, known: Iterable[str]) -> None:
        """Report the section as one without a counterpart, with the `known` ones, and give it up."""
        self.report(self.node, None, f'has no counterpart in Phalanx (it has {", ".join(known)})')
        self.give_up()


@dataclass(frozen=True)
class Counterpart:
    """Counterpart here of a class of the original, such as a transform or a loss."""

    name: str
    # ours -> theirs, its default (or REQUIRED), and what converts its value, if that differs
    options: Mapping[str, tuple[str, Any] | tuple[str, Any, Callable[[Node], Node]]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # their options without a counterpart: they must have these defaults
    always: Mapping[str, Any] = field(default_factory=dict)  # our options that are the same for all of theirs

    def take_options(self, section: Section) -> dict[str, Node]:
        """Take the options of the class from its `section`, and return them by our names."""
        taken = {}
        for ours, (theirs, default, *convert) in self.options.items():
            node = section.require(theirs) if default is REQUIRED else section.take(theirs, default)
            taken[ours] = convert[0](node) if convert else node
        section.expect_defaults(self.fixed)
        return taken

    def translate(self, section: Section, kind: Node | None = None) -> Node:
        """Translate the class in `section`, named by `kind`."""
        name = with_value(kind, self.name) if kind else self.name
        return section.to_node({'name': name, **self.take_options(section), **self.always})


def optimizer_options(section: Section, optimizer: str) -> dict[str, Any]:
    """Take the options of one of Paddle's optimizers, and return them by our names; none for an unknown `optimizer`."""
    match optimizer:
        case 'SGD' | 'Momentum':
            momentum = section.take('momentum', 0.9 if optimizer == 'Momentum' else 0.0)
            return {'name': 'sgd', 'momentum': momentum, 'nesterov': section.take('use_nesterov', False)}
        case 'Adam' | 'AdamW':
            betas = [section.take('beta1', 0.9), section.take('beta2', 0.999)]
            return {'name': optimizer.lower(), 'betas': betas, 'eps': section.take('epsilon', 1e-8)}
        case _:
            return {}


def piecewise_rates(section: Section) -> tuple[Node, list[Node]]:
    """First rate of `values`, and the others as multiples of it."""
    rates = section.items('values')
    lr = rates[0] if rates else section.require('values')
    if as_number(lr) == 0:
        section.report(
            lr, 'values', 'begins with a rate of 0, at which nothing is learned; leave out that value and the first boundary'
        )
    return lr, [convert(node, lambda rate: rate / (as_number(lr) or 1.0)) for node in rates[1:]]


def decay_by(section: Section, key: str, boundaries: Sequence[Any], gamma: float) -> dict[str, Any]:
    """Schedule that multiplies the rate by `gamma` at each of the `boundaries`, the value of `key`."""
    try:
        factors = [gamma**number for number in range(1, len(boundaries) + 1)]
    except OverflowError:
        section.report(section.node, None, f'{len(boundaries)} decays by {gamma:g} end at a rate that no number can hold')
        factors = []
    return {'name': 'piecewise', key: list(boundaries), 'factors': factors}


def multiples(section: Section, key: str, size: float, count: float) -> list[float]:
    """Multiples of `size`, the value of `key`, from 1 to `count`; too many are reported."""
    if count > MOST_DECAYS:
        section.report(section.node, key, f'{size:g} gives {count:,.0f} decays of the rate; {MOST_DECAYS:,} are the most')
        return []
    return [size * number for number in range(1, int(count) + 1)]


def number_classes(section: Section, key: str) -> tuple[Node, list[str]]:
    """Take the number of classes under `key`; return it with names for them."""
    node = section.count(key)
    count = int(as_number(node) or 0)
    if count > MOST_CLASSES:
        section.report(node, key, f'{count:,} classes do not fit a label map of 8 bits, which holds up to {MOST_CLASSES}')
        count = 0
    return node, [f'class {number}' for number in range(count)]


def as_number(node: Node) -> float | None:
    """Convert a scalar to a number, also `1e-4`, which YAML 1.1 reads as text. None if it is not a finite number."""
    if isinstance(node.value, bool) or not isinstance(node.value, int | float | str):
        return None
    try:
        number = float(node.value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def with_value(node: Node, value: Any) -> Node:
    """Node of `value` with the origin of `node`, which it replaces."""
    return Node(value, node.origin, str(value))


def norm_sync(synchronised: Node) -> Node:
    """Translate a flag for synchronised batch norms into `norm_sync`."""
    return with_value(synchronised, 'global' if synchronised.value else 'off')


def convert(node: Node, function: Callable[[float], Any]) -> Node:
    """`function` of the number `node`; anything else stays as it is, and is reported when the recipe is bound."""
    number = as_number(node)
    return node if number is None else with_value(node, function(number))


def turn_round(listed: Node) -> Node:
    """Turn a list round, such as a size (width, height) into (height, width). Anything else stays as it is."""
    return Node(listed.value[::-1], listed.origin) if isinstance(listed.value, list) else listed


def assign(root: Node, keys: list[str], value: Node) -> Node:
    """Copy of `root` with `value` at the path `keys`. Nodes on the way that cannot contain the next key are replaced."""
    if not keys:
        return value
    key, *rest = keys
    if isinstance(root.value, list) and key.isdecimal() and int(key) < len(root.value):
        items = list(root.value)
        items[int(key)] = assign(items[int(key)], rest, value)
        return Node(items, root.origin)
    children = root.value if isinstance(root.value, dict) else {}
    child = assign(children.get(key, Node({}, value.origin)), rest, value)
    return Node({**children, key: child}, root.origin)


def holds(root: Node, keys: list[str]) -> bool:
    """True if there is a value at the path `keys`."""
    if not keys:
        return True
    key, *rest = keys
    if isinstance(root.value, list):
        return key.isdecimal() and int(key) < len(root.value) and holds(root.value[int(key)], rest)
    return isinstance(root.value, dict) and key in root.value and holds(root.value[key], rest)
