"""One command for all nodes. `ssh` here is a script that enters a network namespace and hands the line to a shell there."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tarfile
from pathlib import Path

import pytest

from nodes.conftest import Node
from nodes.test_nodes import SHORT, ips, nobody_left, steps
from phalanx.cli.main import main
from phalanx.launch.remote import fetch_folder, remote_command, strip_local_flags
from running import TINY


@pytest.fixture
def ssh(nodes: list[Node], tmp_path: Path) -> dict[str, str]:
    """The environment in which `ssh` reaches the nodes. Each has a folder of its own where the others have theirs."""
    folder = tmp_path / 'bin'
    folder.mkdir()
    cases = '\n'.join(f'  {node.address}) space={node.namespace} at={node.folder.name};;' for node in nodes)
    script = folder / 'ssh'
    script.write_text(
        '#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nhost=$2; shift 2\n'
        f'case "$host" in\n{cases}\n  *) echo "ssh: connect to host $host: No route to host" >&2; exit 255;;\nesac\n'
        f'line=$(printf %s "$*" | sed "s#{tmp_path}/m[0-9]#{tmp_path}/$at#g")\n'
        'exec setsid ip netns exec $space /bin/sh -c "$line"\n'
    )
    script.chmod(0o755)
    return {'PATH': f'{folder}:{os.environ["PATH"]}'}


@pytest.mark.long
def test_one_command_trains_on_all_nodes(nodes: list[Node], ssh: dict[str, str]) -> None:
    one = nodes[0].phalanx('train', *TINY, *SHORT, '--save_dir', 'run', '--ips', ips(nodes[:2]), '--ssh', **ssh)
    assert one.end() == 0, one.output
    assert '[10.78.0.2] phalanx: 10.78.0.2 (eth2) is node 2 of 2' in one.output
    assert steps(nodes[0]) == 12
    assert nobody_left(nodes)


def test_results_are_copied_to_a_node_that_does_not_train(nodes: list[Node], ssh: dict[str, str]) -> None:
    one = nodes[2].phalanx('train', *TINY, *SHORT, '--save_dir', 'run', '--ips', ips(nodes[:2]), '--ssh', **ssh)
    assert one.end() == 0, one.output
    assert 'the results of 10.78.0.1 are in' in one.output
    assert steps(nodes[0]) == steps(nodes[2]) == 12
    assert (nodes[2].folder / 'run' / 'latest').is_dir()


# An archive ends with two empty blocks of 512 bytes, and is filled up to whole records of 10,240. Here the first of the two
# ends a record, so whoever reads the archive knows its end before the last record is sent.
LATE = """
import sys, tarfile, time
if 'tar -C' not in sys.argv[-1]:
    sys.exit(1)
with tarfile.open('all.tar', 'w', format=tarfile.GNU_FORMAT) as archive:
    archive.add('there', 'run')
sent = open('all.tar', 'rb').read()
assert len(sent) == 20480
for record in sent[:10240], sent[10240:]:
    sys.stdout.buffer.write(record)
    sys.stdout.flush()
    time.sleep(0.5)
"""


def test_results_are_copied_back_even_if_the_last_record_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'there').mkdir()
    (tmp_path / 'there' / 'metrics.jsonl').write_bytes(b'x' * (10240 - 3 * 512))
    ssh = tmp_path / 'ssh'
    ssh.write_text(f'#!{sys.executable}\n{LATE}')
    ssh.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    monkeypatch.chdir(tmp_path)
    fetch_folder('10.0.0.1', tmp_path / 'run')
    assert (tmp_path / 'run' / 'metrics.jsonl').stat().st_size == 8704


@pytest.mark.long
def test_an_interrupt_stops_all_nodes(nodes: list[Node], ssh: dict[str, str]) -> None:
    long = ('train.steps=4000', 'evaluate.enabled=false', 'report.every=1', 'report.pictures=0')
    one = nodes[0].phalanx('train', *TINY, *long, '--save_dir', 'run', '--ips', ips(nodes[:2]), '--ssh', **ssh)
    one.until(lambda: steps(nodes[0]) >= 3)
    one.process.send_signal(signal.SIGINT)
    assert one.end() == 130, one.output
    assert nobody_left(nodes)
    assert (nodes[0].folder / 'run' / 'latest').exists()


def test_a_node_that_ssh_cannot_reach_ends_the_start(nodes: list[Node], ssh: dict[str, str]) -> None:
    one = nodes[0].phalanx('train', *TINY, *SHORT, '--ips', '10.78.0.1,10.78.0.99', '--ssh', **ssh)
    assert one.end() == 2, one.output
    assert '[10.78.0.99] ssh: connect to host 10.78.0.99: No route to host' in one.output
    assert 'ssh could not reach 10.78.0.99' in one.output
    assert nobody_left(nodes)


def test_the_shell_on_the_other_side_gets_exactly_the_words() -> None:
    """A folder and values with spaces, quotes, semicolons and dollars mean nothing to the shell."""
    words = ['data.root=/d\'a t"a; rm -rf $HOME', '$(reboot)', '`id`', '--save_dir', 'a b']
    line = remote_command('train', words, Path("/tmp/it's here; $x"))
    change, run = line.split(' && exec ')
    assert shlex.split(change) == ['cd', "/tmp/it's here; $x"]
    assert shlex.split(run)[-len(words) :] == words


# What a rank was given, and with whom it runs.
SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group('gloo')
total = torch.ones(1)
dist.all_reduce(total)
print('rank', os.environ['RANK'], 'of', int(total), 'given', *sys.argv[1:], flush=True)
dist.barrier()
os._exit(0)
"""


@pytest.mark.long
def test_a_script_gets_its_own_words_as_typed_and_all_nodes_form_one_world(nodes: list[Node], ssh: dict[str, str]) -> None:
    for node in nodes[:2]:
        (node.folder / 's.py').write_text(SCRIPT)
    words = ('--host', 'db', '--ips', 'c,d', '--ssh', '--lr', '1')
    one = nodes[0].phalanx('launch', '--ips', ips(nodes[:2]), '--ssh', '--nproc_per_node', '1', 's.py', *words, **ssh)
    assert one.end() == 0, one.output
    assert 'rank 0 of 2 given --host db --ips c,d --ssh --lr 1' in one.output
    log = nodes[1].folder / 'log' / 'workerlog.1'
    assert log.read_text() == 'rank 1 of 2 given --host db --ips c,d --ssh --lr 1\n'


def test_a_host_that_nobody_knows_is_named_with_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['launch', '--ips', 'no-such-host.invalid,10.0.0.1', '--ssh', 's.py']) == 2
    assert (
        '--ips no-such-host.invalid,10.0.0.1: no-such-host.invalid: this node cannot resolve the name'
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ('name', 'kind', 'link'),
    [
        ('.bashrc', tarfile.REGTYPE, ''),
        ('run/../.bashrc', tarfile.REGTYPE, ''),
        ('run/out', tarfile.SYMTYPE, '../.bashrc'),
        ('run/out', tarfile.SYMTYPE, '/etc/passwd'),
        ('run/out', tarfile.LNKTYPE, '.bashrc'),
        ('run', tarfile.SYMTYPE, '.'),
        ('run/device', tarfile.CHRTYPE, ''),
    ],
)
def test_results_are_copied_into_the_run_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes, link: str
) -> None:
    """The first node sends one good file, and one that would lie or lead elsewhere."""
    home = tmp_path / 'home'
    home.mkdir()
    with tarfile.open(tmp_path / 'all.tar', 'w') as archive:
        for member in (tarfile.TarInfo('run/metrics.jsonl'), tarfile.TarInfo(name)):
            if member.name == name:
                member.type, member.linkname = kind, link
            archive.addfile(member)
    ssh = tmp_path / 'ssh'
    ssh.write_text(f'#!/bin/sh\ncase "$*" in *"tar -C"*) exec cat {tmp_path}/all.tar;; esac\nexit 1\n')
    ssh.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    with pytest.raises(OSError, match=r'10\.0\.0\.1 sent other data than'):
        fetch_folder('10.0.0.1', home / 'run')
    assert [file.name for file in home.iterdir()] == ['run']
    assert [file.name for file in (home / 'run').iterdir()] == ['metrics.jsonl']


def test_flags_of_this_node_are_not_sent_to_others() -> None:
    words = ['r.yml', '--ssh', '--host', '10.0.0.1', '--ips=a,b', '--gpus', '0', '--hostfile', 'h', '--set', 'a=b']
    assert strip_local_flags(words) == ['r.yml', '--gpus', '0', '--set', 'a=b']
