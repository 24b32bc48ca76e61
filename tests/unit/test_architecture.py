"""The rules of the house that keep it readable, each with its reason. Each test lists the files that break one."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import phalanx

ROOT = Path(phalanx.__file__).parent
FILES = sorted(ROOT.rglob('*.py'))

# The rooms from the top of the house to its ground: each may import those after it that stand beside its name.
BELOW_FAMILIES = ('nn', 'synthetic', 'data', 'parallel', 'config', 'system', 'runtime')
BELOW_ENGINE = ('report', 'weights', 'paddle', 'families', *BELOW_FAMILIES)
MAY_IMPORT = {
    'cli': ('curation', 'bench', 'launch', 'deploy', 'engine', *BELOW_ENGINE),
    'curation': ('bench', 'engine', *BELOW_ENGINE),
    'bench': ('launch', 'engine', *BELOW_ENGINE),
    'launch': ('parallel', 'config', 'system'),
    'deploy': ('engine', *BELOW_ENGINE),
    'engine': BELOW_ENGINE,
    'report': ('families', 'data', 'system'),
    'weights': ('paddle', 'families', 'nn', 'config', 'system', 'runtime'),
    'paddle': ('families', 'nn', 'config', 'system'),
    'families': BELOW_FAMILIES,
    'nn': ('parallel', 'system'),
    'synthetic': ('data', 'config', 'system'),
    'data': ('parallel', 'config', 'system', 'runtime'),
    'parallel': ('system',),
    'config': ('system',),
    'system': (),
    'runtime': (),  # exported files without torch: installable by itself
}
FAMILIES = ('segmentation', 'detection', 'recognition', 'table', 'text_detection')
CATALOGS = ('MODELS', 'DATA', 'LOSSES', 'METRICS', 'TRANSFORMS', 'DISTILLATIONS', 'TEACHER_LOSSES', 'ASSIGNERS', 'TASKS')
SCREEN = 70  # lines


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of its tree: to walk it takes twice as long as to parse it."""
    return tuple(ast.walk(tree(file)))


def room(file: Path) -> str:
    """`launch/agent.py` -> `launch`."""
    return file.relative_to(ROOT).parts[0]


def inside(file: Path, *places: str) -> bool:
    """True if a file is, or is in, one of `places`: `cli`, `families/table`, `parallel/dist.py`."""
    name = file.relative_to(ROOT).as_posix()
    return any(name == place or name.startswith(f'{place}/') for place in places)


def files(*without: str) -> list[Path]:
    """All files but those in the places `without`."""
    return [file for file in FILES if not inside(file, *without)]


@cache
def imports(file: Path) -> set[str]:
    """The modules that a file imports anywhere, by full name."""
    found = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{file}: imports are absolute'
            found |= {f'{node.module}.{alias.name}' for alias in node.names}
    return found


def asked(file: Path) -> set[str]:
    """The other rooms whose modules a file imports: `phalanx.launch.agent.launch` -> `launch`."""
    return {module.split('.')[1] for module in imports(file) if module.startswith('phalanx.')} - {room(file)}


def family(file: Path) -> str:
    return file.relative_to(ROOT / 'families').parts[0]


@cache
def dotted(file: Path) -> set[str]:
    """The dotted names of a file, `a.b` or `a.b.c`."""
    return {ast.unparse(node) for node in nodes(file) if isinstance(node, ast.Attribute)}


def functions(file: Path) -> list[ast.FunctionDef]:
    return [node for node in nodes(file) if isinstance(node, ast.FunctionDef)]


def test_every_file_is_in_a_room_that_says_what_it_is_for() -> None:
    """Few enough rooms for a stranger to hold in mind; each says in a line what it holds and may import."""
    rooms = {folder.name for folder in ROOT.iterdir() if (folder / '__init__.py').is_file()}
    assert rooms == set(MAY_IMPORT)
    assert len(rooms) <= 17
    assert {file.name for file in ROOT.glob('*.py')} == {'__init__.py', '__main__.py'}
    for name in rooms - {'runtime'}:
        said = ast.get_docstring(tree(ROOT / name / '__init__.py')) or ''
        assert 'import' in said.lower() and '\n' not in said, name


def test_imports_run_downward_only() -> None:
    """So no two rooms need each other, and a reader who comes from above has met whoever uses a file."""
    order = list(MAY_IMPORT)
    assert not [
        (name, other) for name, others in MAY_IMPORT.items() for other in others if order.index(other) <= order.index(name)
    ]
    doors = [file for file in FILES if file.name == '__main__.py' or file == ROOT / '__init__.py']  # they say where to go in
    others = {
        (str(file.relative_to(ROOT)), other)
        for file in FILES
        if file not in doors
        for other in asked(file) & set(MAY_IMPORT)
        if other not in MAY_IMPORT[room(file)]
    }
    assert not others


def test_no_two_modules_need_each_other() -> None:
    """Not even for types: each module of a cycle can only be read together with the others."""
    files_of = {'.'.join(file.relative_to(ROOT.parent).with_suffix('').parts).removesuffix('.__init__'): file for file in FILES}
    needs = {
        name: {known for module in imports(file) for known in (module, module.rpartition('.')[0]) if known in files_of} - {name}
        for name, file in files_of.items()
    }
    while needs:
        ready = {name for name, others in needs.items() if not others & needs.keys()}
        assert ready, f'a cycle is among {sorted(needs)}'
        needs = {name: others for name, others in needs.items() if name not in ready}


def test_families_do_not_know_each_other() -> None:
    """A family can be read, changed or taken away by itself; what two of them need stands in a room below, or beside them.

    Who may know them: the table of all, the names that the originals give their parameters, and pages, which two of them read.
    """
    for file in files('families/catalog.py', 'paddle/weights', 'weights/libraries.py', 'deploy/pages.py', 'deploy/tables.py'):
        known = {module.split('.')[2] for module in imports(file) if module.split('.')[:2] == ['phalanx', 'families']}
        assert known & set(FAMILIES) <= ({family(file)} if room(file) == 'families' else set()), file


@pytest.mark.parametrize('family', FAMILIES)
def test_families_have_the_same_files(family: str) -> None:
    """A reader of one family finds the way in the others."""
    own = ('task', 'transforms', 'draw', 'survey', 'data', 'models', 'loss', 'metric')  # of one file, or a folder of several
    folder = ROOT / 'families' / family
    assert not [name for name in own if not (folder / f'{name}.py').is_file() and not (folder / name).is_dir()]


@pytest.mark.parametrize('family', FAMILIES)
def test_a_task_knows_no_network_of_its_family(family: str) -> None:
    """So a network from outside fits: it imports the catalog alone, and asks no network what it has or what it is."""
    file = ROOT / 'families' / family / 'task.py'
    of_models = {name for name in imports(file) if f'.{family}.models' in name}
    assert of_models == {f'phalanx.families.{family}.models.MODELS'}
    calls = [node for node in nodes(file) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not [call for call in calls if call.func.id == 'hasattr']  # type: ignore[attr-defined]
    asked_for = [ast.unparse(call.args[1]) for call in calls if call.func.id == 'isinstance']  # type: ignore[attr-defined]
    assert set(asked_for) <= {'Path'}


def test_in_a_family_only_metrics_talk_to_other_ranks() -> None:
    """Losses are sums that the trainer brings together, or ask `WholeStep`: so they mean the same however a step is cut."""
    of_families = [file for file in FILES if room(file) == 'families' and file.parent.name != 'metric']
    assert not [file for file in of_families if 'phalanx.parallel.dist' in imports(file)]


def test_only_four_modules_and_launch_talk_to_torch_distributed() -> None:
    """Exchanges between ranks stand in four files, which tests can watch. (The command line marks why a rank failed.)"""
    marking = 'torch.distributed.elastic.multiprocessing.errors.record'
    found = {
        (room(file), name)
        for file in files(*(f'parallel/{name}.py' for name in ('dist', 'arrival', 'gradients', 'flight_recorder')), 'launch')
        for name in imports(file)
        if name.startswith('torch.distributed')
    }
    assert found <= {('cli', marking)}


def test_networks_take_norms_and_dropout_from_here() -> None:
    """Norms of torch see a micro-batch on one rank, so their result depends on how the global batch is cut."""
    names = ('BatchNorm1d', 'BatchNorm2d', 'SyncBatchNorm', 'Dropout', 'Dropout2d', 'batch_norm', 'dropout')
    torchs = {f'{module}.{name}' for module in ('nn', 'F') for name in names}
    replacing = 'nn/backbones/timm_backbone.py'  # names those of timm, which it replaces
    assert not [file for file in files('parallel/norms.py', 'nn/stochastic.py', replacing) if dotted(file) & torchs]


def test_random_numbers_come_from_generators_with_a_seed() -> None:
    """A generator that all share would give other numbers with more workers or ranks, and after a resume."""
    own = files('data/external.py')  # gives the global generators a seed of the sample, for transforms of other libraries
    assert not [file for file in own if 'random' in {module.partition('.')[0] for module in imports(file)}]
    drawn = {name.partition('(')[0] for file in own for name in dotted(file) if name.startswith('np.random.')}
    assert drawn <= {'np.random.default_rng', 'np.random.Generator'}


def test_nothing_below_the_commands_prints() -> None:
    """The output of a run comes from the report, which the main rank alone writes and `--json` can silence."""
    below = files('cli', 'curation', 'bench', 'deploy', 'launch', 'report')
    calls = [(file, node.func) for file in below for node in nodes(file) if isinstance(node, ast.Call)]
    assert not [file for file, name in calls if isinstance(name, ast.Name) and name.id == 'print']


def test_no_function_swallows_misspelt_options() -> None:
    """A recipe's keys are checked against signatures. `create_model` hands them on to a function that knows its own."""
    assert {function.name for file in FILES for function in functions(file) if function.args.kwarg} <= {'create_model'}


def test_catalogs_are_literal() -> None:
    """An editor finds what a name in a recipe stands for, and nothing is imported for its side effect."""
    for file in FILES:
        if room(file) == 'families':
            for node in tree(file).body:
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    is_catalog = isinstance(target, ast.Name) and target.id in CATALOGS
                    assert not is_catalog or isinstance(node.value, ast.Dict), f'{file}:{node.lineno}'


def test_functions_fit_a_screen() -> None:
    """A longer function has parts that deserve a name."""
    long = {f'{function.name} in {room(file)}' for file in FILES for function in functions(file) if lines(function) > SCREEN}
    assert not long


def lines(function: ast.FunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_commands_are_thin() -> None:
    """A command parses, calls and prints; what it calls stands in a room of its subject, where others can call it too."""
    assert not {
        file.name: count for file in FILES if room(file) == 'cli' and (count := len(file.read_text().splitlines())) > 150
    }


def test_no_room_is_called_utils() -> None:
    """A file named for its subject has a limit; one named for its use grows without."""
    assert not [file for file in FILES if file.stem in ('utils', 'helpers', 'common', 'misc')]


def test_one_module_alone_removes_what_is_on_a_disk() -> None:
    """The rules for removal stand there; a launch once removed the run folders of others, which looked like its own."""
    removing = {'shutil.rmtree', 'os.remove', 'os.unlink', 'os.rmdir', 'os.removedirs', 'rmtree'}
    methods = {'unlink', 'rmdir', 'rmtree'}
    calls = [(file, node.func) for file in files('system/disk.py') for node in nodes(file) if isinstance(node, ast.Call)]
    named = [(file, name) for file, name in calls if ast.unparse(name) in removing]
    of_paths = [(file, name) for file, name in calls if isinstance(name, ast.Attribute) and name.attr in methods]
    assert not named + of_paths


def test_one_module_alone_opens_images() -> None:
    """Formats are allowed there by name: some of those that Pillow knows are programs, which it runs."""
    opening = ('PIL.Image.open', 'Image.open', 'cv2.imread', 'cv2.imdecode', 'cv2.imreadmulti', 'torchvision.io.read_image')
    assert not [file for file in files('data/image.py') if dotted(file) & set(opening)]
    calls = [node for node in ast.walk(tree(ROOT / 'data' / 'image.py')) if isinstance(node, ast.Call)]
    opens = [call for call in calls if ast.unparse(call.func) == 'PIL.Image.open']
    assert [[keyword.arg for keyword in call.keywords] for call in opens] == [['formats']]


def test_no_two_test_files_have_the_same_name() -> None:
    """Pytest imports them by name: it collects only one of two, and whether both run in one go depends on the command."""
    names = [file.name for file in Path(__file__).parents[1].rglob('test_*.py')]
    assert not [name for name in names if names.count(name) > 1]
