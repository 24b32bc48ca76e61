"""YAML files and command-line assignments -> one tree of Nodes, each remembering where it was written."""

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from phalanx.config.shipped import shipped_recipes
from phalanx.system.buckets import redact
from phalanx.system.errors import RequestError
from phalanx.system.paths import parse_path, shorten_path

# Two keys for one setting. One that overrides removes the other, so that `--set train.steps=10` shortens a recipe that counts
# epochs. Both at one place, a file or a command line, are refused.
ALTERNATIVES = (
    ('steps', 'epochs'),
    ('every', 'every_epochs'),
    ('warmup_steps', 'warmup_epochs'),
    ('global_batch_size', 'batch_size_per_rank'),
)
SYNONYMS = {'gpu': 'cuda', 'float32': 'fp32', 'float16': 'fp16', 'bfloat16': 'bf16'}  # as other tools have them
BASE = '_base_'  # key of a file that names its bases
# Limits per file. The largest shipped recipe has some hundreds of nodes; a list of classes may have many thousands.
MOST_CHARACTERS, MOST_NODES, MOST_LEVELS = 4_000_000, 200_000, 64
LONGEST_NUMBER = 1000  # characters
STRUCTURE = frozenset('[]{}:#"\'|>\n')  # YAML syntax wherever it occurs in a scalar
FASTEST = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)  # libyaml's, in a tenth of the time
MERGE_KEY = 'tag:yaml.org,2002:merge'
MOST_BASES = 32  # bases per file, files in total, and levels


class ConfigError(RequestError):
    """All problems of a configuration, one per line, each with its origin."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = [redact(problem) for problem in problems]  # origins and values may be URLs
        super().__init__('\n'.join(self.problems))


@dataclass(frozen=True, slots=True)
class Node:
    """A YAML value (a scalar, a list of Nodes or a dict of Nodes) and its origin, `file:line`."""

    value: Any
    origin: str
    text: str | None = None  # a scalar as written: YAML 1.1 reads `off` as false, a field of type str still gets the text


def read(path: Path) -> Node:
    """Read the recipe at `path`, merged over the recipes that its `_base_` names (files next to it, or shipped ones): later
    bases override earlier ones, its own keys override all bases.

    Raises ConfigError for a missing file, invalid YAML, a duplicate key, and for a cycle of bases or too many of them.
    """
    known = shipped_recipes(parts=True)
    return load_with_bases(path.resolve(), BASE, lambda own, bases: reduce(merge, [*bases, own]), known)


def load_with_bases(
    path: Path,
    key: str,
    join: Callable[[Node, Iterable[Node]], Node],
    known: Mapping[str, Path] | None = None,
    notes: list[str] | None = None,
) -> Node:
    """Load the file at `path` and, recursively, the bases that its `key` names; `join` merges a file with its bases.

    `known` as in `find_base_file`, `notes` as in `load_yaml`.

    Each file is loaded and joined once, even if several files name it. Raises ConfigError for a cycle and for too many files.
    """
    whole: dict[Path, Node] = {}  # file -> merged with its bases

    def load_one(path: Path, above: tuple[Path, ...]) -> Node:
        file = path.resolve()
        # `above` are the files on the way here: one that occurs again closes a cycle.
        if file in above:
            cycle = ' -> '.join(shorten_path(each) for each in (*above[above.index(file) :], file))
            raise ConfigError([f'{shorten_path(path)}: `{key}` comes back to itself: {cycle}'])
        if file not in whole:
            own = load_yaml(path, notes)
            bases = own.value.pop(key, None)
            names = bases.value if bases and isinstance(bases.value, list) else list(filter(None, [bases]))
            if max(len(names), len(whole), len(above)) > MOST_BASES:
                raise ConfigError([f'{shorten_path(path)}: `{key}` leads to more than {MOST_BASES} files'])
            whole[file] = join(own, [load_one(resolve_base(base, key, path, known), (*above, file)) for base in names])
        return whole[file]

    return load_one(path, ())


def load_yaml(path: Path, notes: list[str] | None = None) -> Node:
    """Mapping in the YAML file at `path`, without its bases. Raises ConfigError.

    With `notes`, read the dialect of the Paddle projects: the last of two equal keys counts (and is noted), and an object
    `!Tag {a: 1}` is the mapping `{type: Tag, a: 1}`, with `!Tag` as the text of its type.
    """
    shown = shorten_path(path)
    try:
        # Recipes are UTF-8 on every machine, whatever its locale.
        text = path.read_text(encoding='utf-8')
    except OSError as error:
        raise ConfigError([f'{shown}: cannot be read: {error.strerror}']) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f'{shown}: is not UTF-8 text (byte {error.start})']) from None
    # First the syntax and its limits, then values with their origins.
    tree = _parse_yaml(text, shown)
    problems: list[str] = []
    own = _to_node(tree, shown, problems, notes=notes) if tree is not None else Node({}, f'{shown}:1')
    if not isinstance(own.value, dict):
        kind = 'a list' if isinstance(own.value, list) else f'the value {own.value!r}'
        problems.append(f'{own.origin}: expected a mapping of keys, this is {kind}')
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))  # problems behind an alias occur at each use
    return own


def _parse_yaml(text: str, shown: str) -> yaml.Node | None:
    """Parse a YAML text to nodes without values, within the limits of this module. Raises ConfigError."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError([f'{shown}: has {len(text):,} characters; the limit is {MOST_CHARACTERS:,}'])
    try:
        tree = _compose(text)
        if tree is not None:
            _check_limits(tree, shown, {})
    except yaml.MarkedYAMLError as error:
        # YAML counts lines from 0.
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError([f'{shown}:{line}: is not YAML: {error.problem}']) from None
    except yaml.YAMLError as error:
        raise ConfigError([f'{shown}: is not YAML: {error}']) from None
    except RecursionError:
        raise ConfigError([f'{shown}: is nested too deeply']) from None
    return tree


def _compose(text: str) -> yaml.Node | None:
    """Nodes of a YAML text. PyYAML's own parser judges what libyaml's refuses, and tabs, of which that one accepts more."""
    if '\t' not in text:
        try:
            return yaml.compose(text, Loader=FASTEST)
        except (yaml.YAMLError, UnicodeEncodeError):  # the latter: bytes of a command line that are not UTF-8
            pass
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _check_limits(tree: yaml.Node, shown: str, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Number of nodes and levels of `tree`. Aliases count at each use: nested aliases can grow exponentially.

    `known`: results by node identity; (0, 0) marks a node that is being counted. Raises ConfigError beyond the limits.
    """
    line = tree.start_mark.line + 1
    # Memoised by identity: an alias is the same node again.
    if id(tree) not in known:
        known[id(tree)] = 0, 0
        pairs = [node for pair in tree.value for node in pair] if isinstance(tree, yaml.MappingNode) else []
        items = tree.value if isinstance(tree, yaml.SequenceNode) else pairs
        within = [_check_limits(item, shown, known) for item in items]
        known[id(tree)] = 1 + sum(nodes for nodes, _ in within), 1 + max((levels for _, levels in within), default=0)
    nodes, levels = known[id(tree)]
    if nodes == 0:
        raise ConfigError([f'{shown}:{line}: an alias refers to a node that contains it'])
    if nodes > MOST_NODES:
        raise ConfigError([f'{shown}:{line}: has more than {MOST_NODES} entries, counting aliases where they are used'])
    if levels > MOST_LEVELS:
        raise ConfigError([f'{shown}:{line}: is nested too deeply, more than {MOST_LEVELS} levels'])
    return nodes, levels


def resolve_base(base: Node, key: str, path: Path, known: Mapping[str, Path] | None = None) -> Path:
    """File named by `base` under `key` in the file at `path`, see `find_base_file`. Raises ConfigError if there is none."""
    if not isinstance(base.value, str):
        raise ConfigError([f'{base.origin}: {key}: expected the name of a file, got {to_plain(base)!r}'])
    file = find_base_file(base.value, path, known or {})
    if not file.is_file():
        raise ConfigError(
            [f'{base.origin}: {key}: there is no file {shorten_path(file)}{did_you_mean(base.value, known or {})}']
        )
    return file


def find_base_file(name: str, path: Path, known: Mapping[str, Path]) -> Path:
    """Path of the base `name` next to the file at `path`, or else the `known` file of that name; it may not exist."""
    beside = path.parent / parse_path(name)
    return beside if beside.is_file() else known.get(name.removesuffix('.yml'), beside)


def merge(under: Node, over: Node) -> Node:
    """Merge `over` into `under`, key by key. Scalars and lists are replaced, and so is a mapping whose `name` changes.

    Options merged into the bare name of a part are options of that part.
    """
    if isinstance(under.value, str) and isinstance(over.value, dict) and 'name' not in over.value:
        under = Node({'name': under}, under.origin)
    # Another `name` is another component: options of the old one do not fit it.
    if not (isinstance(under.value, dict) and isinstance(over.value, dict)) or _changes_name(under.value, over.value):
        return over
    joined = dict(under.value)
    for key, node in over.value.items():
        # `steps` written later removes an inherited `epochs`.
        for other in _alternatives(key, node) - over.value.keys():
            joined.pop(other, None)
        joined[key] = merge(joined[key], node) if key in joined else node
    return Node(joined, over.origin)


def _alternatives(key: str, node: Node) -> set[str]:
    """Keys that `node` under `key` removes, see ALTERNATIVES; null removes none."""
    return {other for pair in ALTERNATIVES if key in pair and node.value is not None for other in pair if other != key}


def _changes_name(under: dict[str, Node], over: dict[str, Node]) -> bool:
    return 'name' in under and 'name' in over and under['name'].value != over['name'].value


def override(root: Node, assignment: str, origin: str | None = None) -> Node:
    """Merge one assignment, such as `optimizer.lr=0.01` or `loss.0.name=ohem`, into `root`; the value is YAML.

    Raises ConfigError if it is not an assignment, or if an index is past the end of its list.
    """
    origin = origin or f'--set {assignment}'
    keys, value = parse_assignment(assignment, origin)
    return insert(root, keys, value, origin)


def parse_assignment(assignment: str, origin: str) -> tuple[list[str], Node]:
    """Keys and value of `optimizer.lr=0.01`. Raises ConfigError."""
    dotted, equals, text = assignment.partition('=')
    if not equals or not dotted.strip():
        raise ConfigError([f'{origin}: expected key=value'])
    keys = dotted.strip().split('.')
    if len(keys) > MOST_LEVELS:
        raise ConfigError([f'{origin}: is nested too deeply, more than {MOST_LEVELS} levels'])
    try:
        tree = _parse_yaml(text, origin)
    except ConfigError:
        if STRUCTURE.isdisjoint(text):  # text such as `,` or `*.png`, which YAML would require in quotes
            return keys, Node(text, origin, text)
        raise ConfigError([f'{origin}: the value {text[:60]!r} is not YAML; quote it']) from None
    problems: list[str] = []
    value = _to_node(tree, origin, problems, lines=False) if tree is not None else Node(None, origin, '')
    if problems:
        raise ConfigError(problems)
    return keys, value


def check_alternatives(assignments: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigError if `assignments`, (text, origin), set two keys of ALTERNATIVES. Of one key the last value counts."""
    last = dict[str, Node]()
    for text, origin in assignments:
        keys, node = parse_assignment(text, origin)
        last['.'.join(keys)] = node
    given, problems = {key: node.origin for key, node in last.items() if node.value is not None}, []
    for key, origin in given.items():
        part, dot, name = key.rpartition('.')
        for first, second in ALTERNATIVES:
            if name == second and (rival := f'{part}{dot}{first}') in given:
                problems.append(f'{origin}: {rival} is given, too ({given[rival]}); leave one of the two out')
    if problems:
        raise ConfigError(problems)


def insert(under: Node | None, keys: list[str], value: Node, origin: str) -> Node:
    """Merge `value` into `under` at the path `keys`. Raises ConfigError, starting with `origin`, past the end of a list."""
    if not keys:
        return value if under is None else merge(under, value)
    key, *rest = keys
    # A part alone may stand for a list of one.
    if (
        key == '0'
        and under is not None
        and (isinstance(under.value, str) or (isinstance(under.value, dict) and 'name' in under.value))
    ):
        under = Node([under], under.origin)
    # Inside a list: its items are replaced by index.
    if under is not None and isinstance(under.value, list):
        if not key.isdecimal() or len(key) > 9 or int(key) >= len(under.value):
            raise ConfigError([f'{origin}: {key!r} is not an index of a list of {len(under.value)}, which starts at 0'])
        # A copy: other recipes may share the node.
        items = list(under.value)
        items[int(key)] = insert(items[int(key)], rest, value, origin)
        return Node(items, under.origin)
    if under is not None and isinstance(under.value, str) and key != 'name':
        under = Node({'name': under}, under.origin)  # the bare name of a part, which now gets an option
    if under is None or not isinstance(under.value, dict):
        return Node({key: insert(None, rest, value, origin)}, origin)
    # Down the path, then rebuild its nodes on the way back.
    child = insert(under.value.get(key), rest, value, origin)
    if key == 'name':  # options of the previous component do not fit the new one
        return merge(under, Node({key: child}, origin))
    remaining = {name: node for name, node in under.value.items() if name not in _alternatives(key, child)}
    return Node({**remaining, key: child}, under.origin)


def to_plain(node: Node) -> Any:
    """Value of `node` as plain Python data, without origins."""
    if isinstance(node.value, dict):
        return {key: to_plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [to_plain(child) for child in node.value]
    return node.value


def _to_node(
    tree: yaml.Node,
    source: str,
    problems: list[str],
    lines: bool = True,
    key: yaml.Node | None = None,
    notes: list[str] | None = None,
) -> Node:
    origin = f'{source}:{(key or tree).start_mark.line + 1}' if lines else source
    # Tags such as !!python/object are refused; those of Paddle's dialect (`!Tag`) become a `type`.
    tagged = tree.tag not in yaml.SafeLoader.yaml_constructors
    if tagged and (notes is None or not tree.tag.startswith('!') or isinstance(tree, yaml.SequenceNode)):
        problems.append(f'{origin}: the tag {tree.tag} means nothing in a recipe')
    # Mapping: keys by name, merge keys (`<<`) below its own.
    if isinstance(tree, yaml.MappingNode):
        children: dict[str, Node] = {'type': Node(tree.tag[1:], origin, tree.tag)} if tagged else {}
        merged: dict[str, Node] = {}
        for name, value in tree.value:
            if name.tag == MERGE_KEY:
                merged = _read_merge_key(value, source, problems, lines, notes) | merged
                continue
            if not isinstance(name, yaml.ScalarNode):
                problems.append(f'{source}:{name.start_mark.line + 1}: a key is a string, not a list or a mapping')
                continue
            child = _to_node(value, source, problems, lines, key=name, notes=notes)
            if name.value in children:
                text = f'{child.origin}: the key {name.value!r} is written twice, first at {children[name.value].origin}'
                (problems if notes is None else notes).append(text)
            children[name.value] = child
        # An own `steps` removes a merged `epochs`, too.
        replaced = {other for key, child in children.items() for other in _alternatives(key, child)}
        children = {key: child for key, child in merged.items() if key not in replaced} | children
        return Node(children, origin)
    if isinstance(tree, yaml.SequenceNode):
        return Node([_to_node(item, source, problems, lines, notes=notes) for item in tree.value], origin)
    if tagged:  # `!Tag` without content
        return Node({'type': Node(tree.tag[1:], origin, tree.tag)}, origin)
    # Scalar: constructed by YAML's own rules; the text stays for fields of type str.
    is_word = tree.tag == 'tag:yaml.org,2002:str'
    try:
        if len(tree.value) > LONGEST_NUMBER and not is_word:  # 1:1:1 ... is a number in YAML, and takes quadratic time
            raise ValueError('it is too long')
        if '\0' in tree.value:
            raise ValueError('it has a zero byte')
        os.fsencode(tree.value)  # no file is named by a half of a surrogate pair
        value = tree.value if is_word else yaml.SafeLoader('').construct_object(tree)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # for example IndexError for `!!int ""`
        problems.append(f'{origin}: {tree.value[:60]!r} cannot be read as {tree.tag.rpartition(":")[2]}: {str(error)[:200]}')
        value = None
    return Node(value, origin, str(tree.value))


def _read_merge_key(tree: yaml.Node, source: str, problems: list[str], lines: bool, notes: list[str] | None) -> dict[str, Node]:
    """Keys added by a merge key `<<`, from one mapping or several; the first one wins."""
    # YAML 1.1 merge key: `<<: *base` or `<<: [*first, *second]`.
    bases = tree.value if isinstance(tree, yaml.SequenceNode) else [tree]
    if not all(isinstance(base, yaml.MappingNode) for base in bases):
        problems.append(f'{source}:{tree.start_mark.line + 1}: `<<` takes a mapping or a list of mappings')
        return {}
    merged: dict[str, Node] = {}
    for base in bases:
        merged = _to_node(base, source, problems, lines, notes=notes).value | merged
    return merged


def did_you_mean(word: Any, known: Iterable[Any], cutoff: float = 0.6) -> str:
    """End of a message about a wrong `word`: the closest `known` one, whatever their case; empty if none is close."""
    options = {str(option).lower(): str(option) for option in known}
    text = str(word).lower()
    # `cpu` is closer to `gpu` than `cuda`.
    near = difflib.get_close_matches(SYNONYMS.get(text, text), options, n=1, cutoff=cutoff)
    return f'; did you mean {options[near[0]]!r}?' if near else ''
