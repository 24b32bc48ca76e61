"""Node tree -> typed settings. Reports all problems together, each with its origin and the closest valid name."""

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from phalanx.config.read import BASE, ConfigError, Node, did_you_mean, merge, to_plain
from phalanx.system.buckets import UrlError, refuse_secrets
from phalanx.system.paths import parse_path

DEFAULT = 'default'
TYPE_NAMES = {
    int: 'an integer',
    float: 'a number',
    bool: 'true or false',
    str: 'a string',
    Path: 'a path',
    types.NoneType: 'null',
    Any: 'anything',
}
UNSPECIFIC: dict[type, Any] = {list: list[Any], tuple: tuple[Any, ...], dict: dict[str, Any]}  # hints of plugins

T = TypeVar('T')


class Part(partial[T]):
    """Builder of a component: its catalog entry with options, and the `name` of that entry."""

    name: str

    def with_name(self, name: str) -> Self:
        self.name = name
        return self


def bind(root: Node, schema: type, task: Any = None) -> tuple[Any, Any, Node]:
    """Instance of `schema` filled from `root`, a `task` built from its `Keys`, and the tree with all defaults.

    `task` is a class; its `Keys` are a dataclass, filled from the same mapping. Raises ConfigError listing every problem.
    """
    binder = _Binder()
    # The recipe and its task share one mapping: each is bound from its own keys, and unknown ones are reported once.
    makes: dict[type, Callable[..., Any]] = {schema: schema}
    if task is not None:
        makes[task.Keys] = lambda **keys: task(task.Keys(**keys))
    hints = {name: hint for kind in makes for name, hint in key_types(kind).items()}
    for key, child in root.value.items():
        if key not in hints:
            has, near = ', '.join(sorted(hints)), did_you_mean(key, [own for own in (*hints, BASE) if own != key])
            binder.problems.append(f'{child.origin}: {key}: unknown key{near} (a recipe has {has}, and its file {BASE})')
    parts = [Node({k: v for k, v in root.value.items() if k in key_types(kind)}, root.origin) for kind in makes]
    # Bound even if there are problems, so that all are found.
    bound = [binder.fields(part, *pair, '', 'a recipe') for part, pair in zip(parts, makes.items(), strict=True)]
    if binder.problems:
        raise ConfigError(binder.problems)
    resolved = {key: child for _, tree in bound for key, child in tree.value.items()}
    return bound[0][0], bound[1][0] if task is not None else None, Node(resolved, root.origin)


Bound = tuple[Any, Node]  # a value, and the resolved tree behind it


class _Binder:
    """Conversion of a tree, which collects problems; each method returns a value and its resolved tree."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def any(self, node: Node, kind: Any, path: str) -> Bound:
        """Convert `node` to type `kind`; on a problem, record it and return None."""
        # From the most specific kind of type to scalars.
        kind = UNSPECIFIC.get(kind, kind) if isinstance(kind, type) else kind
        value, shape = node.value, get_origin(kind)
        if kind is Any:
            return to_plain(node), node
        if shape is Annotated:
            # A part of a catalog: `Annotated[partial[X], CATALOG, check]`.
            if value is None and is_nullable(kind):
                return None, Node(None, node.origin)
            return self.choice(node, *get_args(kind)[1:], path=path)
        if dataclasses.is_dataclass(kind):
            return self.fields(node, kind, kind, path, path)
        if shape is Literal:
            return self.literal(node, get_args(kind), path)
        if shape in (Union, types.UnionType):
            return self.union(node, get_args(kind), path)
        if shape in (list, tuple):
            return self.sequence(node, shape, get_args(kind), path)
        if shape is dict:
            if not isinstance(value, dict):
                return self.wrong(node, path, 'a mapping')
            bound = {key: self.any(child, get_args(kind)[1], f'{path}.{key}') for key, child in value.items()}
            return {key: item for key, (item, _) in bound.items()}, Node(
                {k: tree for k, (_, tree) in bound.items()}, node.origin
            )
        return self.scalar(node, kind, path)

    def scalar(self, node: Node, kind: type, path: str) -> Bound:
        value, text = node.value, node.text
        # Before any conversion: YAML 1.1 may have turned digits into another number.
        if kind in (int, float) and (cure := _number_cure(node)):
            return self.wrong(node, path, describe_type(kind), cure)
        if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                value = float(value)  # YAML 1.1 reads `1e-4` as text, but the field is a number
            except ValueError:
                return self.wrong(node, path, 'a number')
            if not math.isfinite(value):
                return self.wrong(node, path, 'a finite number')
        elif kind in (str, Path) and text is not None and value is not None and (text or kind is str):
            try:
                if kind is Path:
                    return parse_path(text), Node(text, node.origin, text)
                value = refuse_secrets(text)  # the text: `2015` or `on` where a string is expected
            except UrlError as error:
                self.problems.append(f'{node.origin}: {path}: {error}')
                return None, node
        if type(value) is not kind:
            quoted = kind is int and isinstance(value, str) and value.isdecimal()
            return self.wrong(node, path, describe_type(kind), ', a string; leave out the quotes' if quoted else '')
        return value, Node(value, node.origin, text)

    def literal(self, node: Node, options: tuple[Any, ...], path: str) -> Bound:
        value = next((option for option in options if node.value == option or node.text == option), None)
        if value is None:
            text = node.text if node.text is not None else to_plain(node)
            choices = ', '.join(map(str, options))
            self.problems.append(f'{node.origin}: {path}: {text!r} is not one of {choices}{did_you_mean(text, options)}')
        return value, Node(value, node.origin)

    def union(self, node: Node, options: tuple[Any, ...], path: str) -> Bound:
        rest = [option for option in options if option is not types.NoneType]
        if node.value is None and len(rest) < len(options):
            return None, Node(None, node.origin)
        for option in rest:  # the first matching member of the union
            # A binder of its own: problems of members that do not match are dropped.
            trial = _Binder()
            bound = trial.any(node, option, path)
            if not trial.problems:
                return bound
        is_off = len(rest) < len(options) and str(node.text).lower() in ('off', 'no', 'false', 'none')
        cure = '; null leaves it out' if is_off else ''
        # With a single alternative to null, its own message is the most precise.
        if len(rest) == 1:
            self.problems += [problem + cure for problem in trial.problems]
            return None, node
        return self.wrong(node, path, ' or '.join(describe_type(option) for option in rest), _number_cure(node) or cure)

    def sequence(self, node: Node, shape: type, args: tuple[Any, ...], path: str) -> Bound:
        value = node.value
        if isinstance(value, dict | str) and get_origin(args[0]) is Annotated:  # one part of a catalog is a list of one
            bound, tree = self.any(node, args[0], path)
            return shape([bound]), tree
        if not isinstance(value, list):
            example = f' such as [{node.text.strip("() ")}]' if node.text and value is not None else ''
            return self.wrong(node, path, f'a list{example}')
        # tuple[X, ...] has any length, tuple[X, Y] a fixed one.
        fixed = shape is tuple and args[-1] is not Ellipsis
        if fixed and len(args) != len(value):
            return self.wrong(node, path, f'{len(args)} values')
        kinds = args if fixed else (args[0],) * len(value)
        bound = [self.any(item, kind, f'{path}[{place}]') for place, (item, kind) in enumerate(zip(value, kinds, strict=True))]
        return shape(item for item, _ in bound), Node([tree for _, tree in bound], node.origin)

    def choice(
        self, node: Node, catalog: Mapping[str, Any], check: Callable[[Any], object] = lambda made: None, *, path: str
    ) -> Bound:
        """Build a `Part` from the catalog entry called `name`; the signature of the entry is the schema of its other keys.

        `check` raises ValueError for a part that cannot be used.
        """
        # `- random_flip` is short for `- {name: random_flip}`
        keys = node.value if isinstance(node.value, dict) else {'name': node}
        # The text, since YAML may read a name as something else (`none`, `off`).
        name = keys['name'].text if 'name' in keys else None
        if name is None or name not in catalog:
            where = keys['name'].origin if 'name' in keys else node.origin
            fault = 'missing; give' if name is None else f'{name!r} is not'
            hint = '' if name is None else did_you_mean(name, catalog) or '; parts of your own need --plugin FILE'
            self.problems.append(f'{where}: {path}.name: {fault} one of {", ".join(catalog)}{hint}')
            return None, node
        rest = Node({key: child for key, child in keys.items() if key != 'name'}, node.origin)
        bound, tree = self.fields(rest, catalog[name], partial(Part, catalog[name]), path, name)
        try:
            if bound is not None:
                check(bound.with_name(name))
        except ValueError as error:
            self.problems.append(f'{node.origin}: {path}: {error}')
        return bound, Node({'name': Node(name, keys['name'].origin, name), **tree.value}, node.origin)

    def fields(self, node: Node, schema: Any, make: Any, path: str, owner: str) -> Bound:
        """Call `make` with the keys of a mapping, after checking them against the fields (or keyword options) of `schema`.

        `owner`: name of that schema in messages.
        """
        if not isinstance(node.value, dict):
            return self.wrong(node, path, f'a mapping with {", ".join(key_types(schema)) or "no keys"}')
        hints, defaults = key_types(schema), key_defaults(schema)
        before, values, resolved, dot = len(self.problems), {}, {}, f'{path}.' if path else ''
        # Keys that are written.
        for key, child in node.value.items():
            if key in hints:
                if isinstance(defaults.get(key), partial):  # options for the default part
                    child = merge(default_node(hints[key], defaults[key]), child if child.text is None else _to_mapping(child))
                values[key], resolved[key] = self.any(child, hints[key], dot + key)
            else:
                has, cure = ', '.join(hints) or 'no options', explain_owner(key, node, hints, defaults)
                if not cure and not dataclasses.is_dataclass(schema) and key in inspect.signature(schema).parameters:
                    cure = f'; to make it an option, write `*, {key}` in the signature of {owner}'
                cure = cure or did_you_mean(key, hints)
                self.problems.append(f'{child.origin}: {dot}{key}: unknown key{cure} ({owner} has {has})')
        # Required keys that are missing.
        for name in (name for name in hints if name not in defaults and name not in node.value):
            if dataclasses.is_dataclass(hints[name]):  # a section reports its own missing keys
                values[name], resolved[name] = self.any(Node({}, node.origin), hints[name], dot + name)
            else:
                choices = f', {describe_type(hints[name])}' if get_origin(hints[name]) is Annotated else ''
                self.problems.append(f'{node.origin}: {dot}{name}: missing; {owner} needs it{choices}')
        # Defaults, for the resolved recipe.
        for name in hints:
            if name not in resolved and name in defaults:
                resolved[name] = default_node(hints[name], defaults[name])
        tree = Node({name: resolved[name] for name in hints if name in resolved}, node.origin)
        if len(self.problems) > before:
            return None, tree
        try:
            return make(**values), tree  # __post_init__ holds the rules between fields
        except ValueError as error:
            # A message that begins with a key is about its value, which another file or `--set` may have given.
            key = str(error).partition(' ')[0]
            origin = node.value[key].origin if key in node.value else node.origin
            self.problems.append(f'{origin}: {path or "recipe"}: {error}')
            return None, tree

    def wrong(self, node: Node, path: str, expected: str, cure: str = '') -> Bound:
        actual = node.text if node.text is not None else to_plain(node)
        self.problems.append(f'{node.origin}: {path}: expected {expected}, got {actual!r}{cure}')
        return None, node


# Cached: resolving them takes longer than all else in opening a recipe but YAML.
_type_hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))


def key_types(schema: Any) -> dict[str, Any]:
    """Types of the keys of a schema: fields of a dataclass, or keyword-only options of a function or class.

    Positional parameters are passed by the code that builds the component, so they are not keys. Raises TypeError for an option
    without a type hint, and NameError for a hint that cannot be resolved.
    """
    if dataclasses.is_dataclass(schema):
        hints = _type_hints(schema)
        return {field.name: hints[field.name] for field in dataclasses.fields(schema) if field.init}
    # Keyword-only parameters are options; builders get the rest from Phalanx.
    hints = _type_hints(schema.__init__ if inspect.isclass(schema) else schema)
    # Declared once, where they are used.
    options = [each.name for each in inspect.signature(schema).parameters.values() if each.kind is each.KEYWORD_ONLY]
    if untyped := [name for name in options if name not in hints]:
        raise TypeError(f'the parameter {untyped[0]} has no type hint, which a recipe is checked by')
    return {name: hints[name] for name in options}


def key_defaults(schema: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(schema):
        defaults = {}
        for field in dataclasses.fields(schema):
            if field.default is not dataclasses.MISSING:
                defaults[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                defaults[field.name] = field.default_factory()
        return defaults
    return {
        name: option.default
        for name, option in inspect.signature(schema).parameters.items()
        if option.default is not option.empty
    }


def is_nullable(kind: Any) -> bool:
    """True if a part of a catalog, `Annotated[partial[X] | None, CATALOG]`, may be null."""
    return types.NoneType in get_args(get_args(kind)[0])


def default_node(kind: Any, value: Any) -> Node:
    """Node of a default of type `kind`; a part of a catalog is written with its name and its own defaults."""
    if isinstance(value, tuple) and any(isinstance(part, partial) for part in value):
        # A list of parts, such as the default trackers.
        return Node([default_node(get_args(kind)[0], part) for part in value], DEFAULT)
    if not isinstance(value, partial):
        return to_node(value)
    keys = {'name': Node(name := catalog_name(value, kind), DEFAULT, name), **to_node(value.keywords).value}
    return _Binder().any(Node(keys, DEFAULT), kind, '')[1]


def _to_mapping(name: Node) -> Node:
    """Mapping form of a part given by its name alone."""
    return Node({'name': name}, name.origin)


def catalog_name(part: partial[Any], kind: Any) -> str:
    """Name of `part` in the catalog of its annotated type `kind`."""
    catalog: Mapping[str, Any] = get_args(kind)[1]
    return next(name for name, build in catalog.items() if build is part.func)


def explain_owner(key: str, node: Node, hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Hint for an unknown `key` that is an option of a part inside the mapping `node`; '' if there is no such part."""
    for name, kind in hints.items():
        if get_origin(kind) is Annotated and (name in node.value or name in defaults):
            value = node.value.get(name) or default_node(kind, defaults[name])
            # The part that is set or the default; it may be written by its name alone.
            part = value.value.get('name', value).text if isinstance(value.value, dict) else value.text
            if part in get_args(kind)[1] and key in key_types(get_args(kind)[1][part]):
                return f'; it is an option of {name}: write {name}: {{name: {part}, {key}: {to_plain(node.value[key])}}}'
    return ''


def convert_value(value: Any, kind: Any, path: str) -> Any:
    """Convert plain Python data to type `kind`, as if it were in a recipe at `path`. Raises ValueError."""
    binder = _Binder()
    bound, _ = binder.any(to_node(value), kind, path)
    if binder.problems:
        raise ValueError('\n'.join(problem.removeprefix(f'{DEFAULT}: ') for problem in binder.problems))
    return bound


def to_node(value: Any) -> Node:
    """Node of a default value other than a part of a catalog."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return Node({name: default_node(kind, getattr(value, name)) for name, kind in key_types(type(value)).items()}, DEFAULT)
    if isinstance(value, Mapping):
        return Node({key: to_node(item) for key, item in value.items()}, DEFAULT)
    if isinstance(value, list | tuple):
        return Node([to_node(item) for item in value], DEFAULT)
    value = str(value) if isinstance(value, Path) else value
    return Node(value, DEFAULT, value if isinstance(value, str) else None)


def _number_cure(node: Node) -> str:
    """Fix for digits that YAML 1.1 reads as another number (`010` is 8, `1:30` is 90) or as a string (`08`); else empty."""
    text = (node.text or '').replace('_', '')
    if re.fullmatch(r'[-+]?0\d+', text) and node.value != int(text):
        return f'; a leading zero means octal in YAML: write {int(text)}'
    if not isinstance(node.value, str) and re.fullmatch(r'[-+]?\d+(:\d+)+(\.\d*)?', text):
        return f', which YAML reads as {node.value} (base 60); write the number itself'
    return ''


def describe_type(kind: Any) -> str:
    """Name of a type in messages and in the recipe reference: `an integer`, `a list, each a path`."""
    shape, inner = get_origin(kind), get_args(kind)
    if shape is Annotated:
        return f'one of {", ".join(inner[1])}' + (' or null' if is_nullable(kind) else '')
    if shape is Literal:
        return ' or '.join(str(option) for option in inner)
    if shape in (Union, types.UnionType):
        return ' or '.join(describe_type(option) for option in inner)
    if shape is dict:
        return f'a mapping from names to {describe_type(inner[1])}'
    if shape in (list, tuple):
        variadic = shape is list or inner[-1] is Ellipsis
        return f'a list, each {describe_type(inner[0])}' if variadic else f'[{", ".join(describe_type(one) for one in inner)}]'
    return 'a mapping' if dataclasses.is_dataclass(kind) else TYPE_NAMES.get(kind, getattr(kind, '__name__', str(kind)))
