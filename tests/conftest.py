"""Running the command as a user does."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
import torch

from phalanx.system import buckets
from phalanx.system.process import fast_imports
from running import PHALANX, TINY, Command, made_once, run_fork, run_here
from stores import Store, access, serve

with contextlib.suppress(ImportError):  # `make gpu` runs without Hypothesis
    from hypothesis import settings

    settings.register_profile('any speed', deadline=None)  # examples take longer on a busy machine
    settings.load_profile('any speed')


def pytest_configure() -> None:
    """Gives this process one thread, as `make test` does, also to a bare `pytest`: sums over two differ in the last bits."""
    torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keeps PyTorch's objects and 6,000 tests from the garbage collector, which every training in this process calls."""
    with fast_imports():
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            _import_share()
        return (yield)


def _import_share() -> None:
    """Import the modules of this worker's number first: pytest compiles each once, and not all of them in every worker."""
    number, count = int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:]), int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', '1'))
    for file in sorted(Path(__file__).parent.rglob('test_*.py'))[number::count] if count > 1 else ():
        is_in_package = (file.parent / '__init__.py').exists()
        if not is_in_package and str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))  # as pytest does
        with contextlib.suppress(Exception, pytest.skip.Exception):  # it is raised again when pytest collects the module
            importlib.import_module(f'{file.parent.name}.{file.stem}' if is_in_package else file.stem)


def pytest_unconfigure() -> None:
    """Ends loader workers that a failed test has left: they ignore SIGTERM, and Python would wait for them at exit."""
    if multiprocessing.active_children():
        from phalanx.engine.loader import end_workers

        end_workers()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows, below a test that failed, what the commands that it started in the background have said."""
    report = yield
    folder = getattr(item, 'funcargs', {}).get('tmp_path')
    if report.failed and folder is not None:
        for output in sorted(folder.rglob('output*.txt')):
            report.sections.append((f'{output.relative_to(folder)}', output.read_text(errors='replace')[-8000:]))
    return report


@pytest.fixture
def phalanx(tmp_path: Path) -> Command:
    """Runs `phalanx WORDS...` in an empty folder, one thread a process, and returns what came of it."""

    return partial(run_fork, PHALANX, tmp_path)


@pytest.fixture
def phalanx_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process: for requests that are refused, and runs of one rank."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        try:
            status = run_here(*words)
        except SystemExit as refused:  # as argparse ends a command
            status = int(refused.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, status, said.out, said.err)

    return run


@pytest.fixture(scope='session')
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose network has trained for a while on one rank.

    Freshly drawn, its gradient is some 50 times as long, and steps of any size that trains blow a difference in the last bit of
    a float32 up to percents within ten steps: no cut, and no other order of summation, could agree.
    """

    def train(folder: Path) -> None:
        assert run_here('train', *TINY, 'train.steps=80', 'evaluate.enabled=false', '--save_dir', str(folder / 'run')) == 0

    return made_once(tmp_path_factory, 'warm', train) / 'run'


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Store, None, None]:
    """Objects of S3, reached as users reach theirs: `s3://tests/set/a.txt` is `store.objects['/tests/set/a.txt']`."""
    pytest.importorskip('obstore', reason='needs obstore (extra `buckets`)')
    objects = Store()
    with serve(objects) as address, monkeypatch.context() as patch:
        for name, value in access(address, tmp_path / 'cache').items():
            patch.setenv(name, value)
        patch.delenv(buckets.FETCHER, raising=False)
        patch.setenv(buckets.CACHE, '{}')
        yield objects
        buckets._connection.cache_clear()  # the fetcher ends
        os.environ.pop(buckets.FETCHER, None)
