"""Commands that another launcher has started: each sees how, and refuses flags that contradict it before ranks meet."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.launch.start import STARTED_BY
from running import run_here

SCRIPT = 'script.py'
COMMANDS = [
    ('train', 'unet_digits'),
    ('eval', 'unet_digits'),
    ('bench', 'scaling', 'unet_digits', '--world', '1,2'),
    ('bench', 'comm'),
    ('doctor',),
    ('launch', SCRIPT),
]


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Place where the ranks of torchrun would meet; this process is rank 3 of 4."""
    (tmp_path / SCRIPT).write_text('')
    monkeypatch.chdir(tmp_path)
    with socket.socket() as listening:
        listening.bind(('127.0.0.1', 0))
        listening.listen()
        listening.setblocking(False)
        ranks = {'RANK': '3', 'LOCAL_RANK': '1', 'WORLD_SIZE': '4', 'LOCAL_WORLD_SIZE': '2', 'TORCHELASTIC_RUN_ID': 'x'}
        place = {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(listening.getsockname()[1])}
        for name, value in (ranks | place).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(STARTED_BY, '')  # removed afterwards, since a command sets it
        monkeypatch.delenv(STARTED_BY)
        yield listening


@pytest.mark.parametrize('command', COMMANDS, ids=lambda command: ' '.join(command[:2]))
def test_contradicting_flags_are_refused_before_any_rendezvous(
    command: tuple[str, ...], master: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ('--nproc_per_node', '3')
    words = (*command[:-1], *flags, command[-1]) if command[0] == 'launch' else (*command, *flags)
    assert run_here(*words) == 2
    message = capsys.readouterr().err
    assert 'set by torchrun (RANK=3, LOCAL_RANK=1, WORLD_SIZE=4, LOCAL_WORLD_SIZE=2, MASTER_ADDR=127.0.0.1' in message
    assert '--nproc_per_node 3 (3 per node), but LOCAL_WORLD_SIZE=2 (2 per node)' in message
    with pytest.raises(BlockingIOError):
        master.accept()
    assert [file.name for file in tmp_path.iterdir()] == [SCRIPT]


def test_a_scaling_comparison_is_not_started_once_per_rank(master: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here('bench', 'scaling', 'unet_digits', '--world', '1,2') == 2
    assert 'start it once, or once per node, not once per rank' in capsys.readouterr().err


@pytest.mark.parametrize('command', ['train', 'eval'])
def test_a_broken_recipe_is_reported_by_the_first_rank_of_a_node_alone(
    command: str, master: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path('broken.yml').write_text('optimizer: {name: sgdd}\n')
    with pytest.raises(SystemExit, match='2'):
        run_here(command, 'broken.yml')
    assert capsys.readouterr() == ('', '')
    monkeypatch.setenv('RANK', '2')
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.delenv(STARTED_BY)
    assert run_here(command, 'broken.yml') == 2
    assert 'broken.yml:1' in capsys.readouterr().err
