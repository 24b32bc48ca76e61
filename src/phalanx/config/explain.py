"""Reference of recipe keys, read from the schema: types, defaults, and docstrings of fields and parts."""

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from phalanx.config.bind import default_node, describe_type, key_defaults, key_types
from phalanx.config.read import ConfigError, did_you_mean, to_plain
from phalanx.config.show import to_inline_yaml


class Option(NamedTuple):
    """A key: its type, its default as YAML (None: required) and its docstring."""

    kind: Any
    default: str | None
    about: str


def explain_any(common: type, families: Mapping[str, type], key: str) -> str:
    """Reference of `key` for recipes of `families`; with several, the common keys first, then each family by name.

    Raises ConfigError if no schema has this key.
    """
    if len(families) == 1:
        return explain([common, *families.values()], key)
    texts = []
    for name, schema in {'every recipe': common, **families}.items():
        try:
            texts.append(f'# {name}\n{explain([schema], key)}')
        except ConfigError:  # another family may have it
            continue
    return '\n'.join(texts) or explain([common, *families.values()], key)


def explain(schemas: Sequence[type], key: str) -> str:
    """Reference of `key` (`train`, `optimizer.sgd`, `transforms`) in recipes of these schemas; '' is the whole recipe.

    Raises ConfigError if no schema has this key.
    """
    options = {name: option for schema in schemas for name, option in _options(schema).items()}
    words = [word for word in key.split('.') if word and not word.isdecimal()]  # indices, as in `transforms.0`, are skipped
    if not words:
        about = (textwrap.indent(_docstring(schema), '      ') for schema in schemas)
        lines = [*filter(None, about), *(line for option in options.items() for line in _key_lines(*option, 0))]
        return '\n'.join(lines) + '\n'
    # Walk down the key word by word: options of a section or part, or the parts of a catalog.
    within: Mapping[str, Any] = options
    for place, word in enumerate(words):
        if word not in within:
            owner, has = '.'.join(words[:place]) or 'a recipe', ', '.join(within) or 'no keys'
            raise ConfigError([f'{key}: unknown key{did_you_mean(word, within)} ({owner} has {has})'])
        entry = within[word]
        within = _members(entry)
    if not isinstance(entry, Option):
        return '\n'.join(_part_lines(word, entry)) + '\n'
    parts = within if _is_catalog(_item_type(entry.kind)) else {}
    lines = [*_key_lines('.'.join(words), entry, 0), *(line for part in parts.items() for line in ('', *_part_lines(*part)))]
    return '\n'.join(lines) + '\n'


def _members(entry: Any) -> Mapping[str, Any]:
    """Valid next words of a key: options of a part or section, or parts of a catalog."""
    if not isinstance(entry, Option):
        return _options(entry)
    core = _item_type(entry.kind)
    if _is_catalog(core):
        catalog: Mapping[str, Any] = get_args(core)[1]
        return catalog
    return _options(core) if dataclasses.is_dataclass(core) else {}


def _options(schema: Any) -> dict[str, Option]:
    hints, defaults, texts = key_types(schema), key_defaults(schema), _field_docstrings(schema)
    return {
        name: Option(
            kind,
            to_inline_yaml(to_plain(default_node(kind, defaults[name]))) if name in defaults else None,
            texts.get(name, ''),
        )
        for name, kind in hints.items()
    }


def _item_type(kind: Any) -> Any:
    """Type of the items of a list or mapping, or of an optional value; any other type is returned as it is."""
    shape, inner = get_origin(kind), [item for item in get_args(kind) if item not in (types.NoneType, Ellipsis)]
    if shape in (Union, types.UnionType, list, tuple, dict) and inner:
        return _item_type(inner[-1])
    return kind


def _is_catalog(kind: Any) -> bool:
    return get_origin(kind) is Annotated


def _key_lines(name: str, option: Option, depth: int) -> Iterator[str]:
    """Lines of a key; of a section, its keys too."""
    core, indent = _item_type(option.kind), '  ' * depth
    is_section = dataclasses.is_dataclass(core)
    default = '(required)' if option.default is None else f'(default: {option.default})'
    yield f'{indent}{name}:' + ('' if core is option.kind and is_section else f' {describe_type(option.kind)} {default}')
    yield from textwrap.indent(option.about or (_docstring(core) if is_section else ''), f'{indent}      ').splitlines()
    if is_section:
        for child in _options(core).items():
            yield from _key_lines(*child, depth + 1)


def _part_lines(name: str, schema: Any) -> Iterator[str]:
    """Lines of one part of a catalog, with its options."""
    yield f'name: {name}'
    yield from textwrap.indent(_docstring(schema), '      ').splitlines()
    for option in _options(schema).items():
        yield from _key_lines(*option, 1)


def _docstring(schema: Any) -> str:
    """Docstring of a schema, or of its base class; a base class mentioned in backticks adds its own docstring.

    Python gives dataclasses without a docstring their signature; those are skipped.
    """
    for cls in schema.__mro__ if inspect.isclass(schema) else (schema,):
        written = vars(cls).get('__doc__') if inspect.isclass(cls) else cls.__doc__
        is_ours = cls.__module__.partition('.')[0] not in ('builtins', 'torch')
        if is_ours and written and not written.startswith(f'{cls.__name__}('):
            bases = cls.__mro__[1:] if inspect.isclass(cls) else ()
            # A docstring that refers to its base class relies on that class's text.
            named = [base.__doc__ or '' for base in bases if f'`{base.__name__}`' in written]
            return '\n\n'.join(inspect.cleandoc(text) for text in (written, *named))
    return ''


def _field_docstrings(schema: Any) -> dict[str, str]:
    """Docstrings under the fields of a dataclass, by field; those of base classes first."""
    classes = reversed(schema.__mro__) if inspect.isclass(schema) else ()
    return {name: text for cls in classes if dataclasses.is_dataclass(cls) for name, text in _own_docstrings(cls).items()}


@cache  # Python parses a whole module to find the source of a class
def _own_docstrings(cls: type) -> dict[str, str]:
    """Docstrings under the fields that a dataclass itself defines, from its source: Python does not keep them."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        ast.unparse(field.target): inspect.cleandoc(str(text.value.value))
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
