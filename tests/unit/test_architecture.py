"""The rules of the house that keep it readable."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import phalanx

ROOT = Path(phalanx.__file__).parent
FILES = sorted(ROOT.rglob('*.py'))
FAMILIES = ('segmentation', 'detection', 'recognition', 'table')
# Each room may import those after it in this list, and what stands in no list.
COMMANDS = ('cli', 'data', 'conversion', 'predict')
ORDER = (*COMMANDS, 'launch', 'worker', 'trainer', 'runs', 'zoo', 'evaluation', 'convert', 'families', *FAMILIES)


def imports(file: Path) -> set[str]:
    """The modules that a file imports, by full name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{file}: imports are absolute'
            found |= {f'{node.module}.{alias.name}' for alias in node.names}
    return found


def room(module: str) -> str:
    """`phalanx.launch.agent.launch` -> `launch`."""
    return module.split('.')[1] if module.startswith('phalanx.') else ''


@pytest.mark.parametrize('file', FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_run_downward_only(file: Path) -> None:
    here = file.relative_to(ROOT).parts[0].removesuffix('.py')
    if file == ROOT / '__init__.py':
        return  # the door: it names what the package offers
    rooms = {room(module) for module in imports(file)} - {here}
    if here in ORDER:
        assert not [other for other in rooms if other in ORDER and ORDER.index(other) < ORDER.index(here)]
    else:
        assert not rooms & set(ORDER)
    if here in FAMILIES or here not in ('families', 'convert'):
        assert not rooms & set(FAMILIES)


@pytest.mark.parametrize('file', FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_dist_and_launch_talk_to_torch_distributed(file: Path) -> None:
    here = file.relative_to(ROOT).parts[0].removesuffix('.py')
    allowed = here in ('dist', 'launch') or file.name == 'cli.py'  # cli wraps a rank in the launcher's `record`
    assert allowed or not [module for module in imports(file) if module.startswith('torch.distributed')]


@pytest.mark.parametrize('file', FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_function_swallows_misspelt_options(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if (
            isinstance(node, ast.FunctionDef) and node.name != 'create_model'
        ):  # it hands them on to a builder, which knows its own
            assert node.args.kwarg is None, f'{file.name}: {node.name} takes **{node.args.kwarg and node.args.kwarg.arg}'


def test_no_room_is_called_utils() -> None:
    assert not [file for file in FILES if file.stem in ('utils', 'helpers', 'common', 'misc')]
