"""A SLURM of two nodes: controller, daemons and commands of Debian's packages, in the network namespaces of `conftest`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodes.conftest import BOUND, SILENT, Node, Started, ip, start
from running import clean_environment

PACKAGES = ('slurmd', 'slurmctld', 'slurm-client', 'slurm-wlm-basic-plugins', 'libmunge2', 'libhwloc15')
LIBRARIES = 'usr/lib/x86_64-linux-gnu'
CONFIGURATION = """ClusterName=tests
SlurmctldHost={controller}({address})
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/output-slurmctld.txt
SlurmdLogFile={folder}/output-slurmd-%n.txt
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=gpu01,gpu02 Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Slurm:
    """The commands of a cluster whose nodes are `gpu01` and `gpu02`; they run on its third node, the controller."""

    root: Path  # where the packages are unpacked
    folder: Path
    controller: Node

    def environment(self) -> dict[str, str]:
        libraries = self.root / LIBRARIES
        return {
            **{name: value for name, value in clean_environment().items() if not name.startswith('SLURM')},
            'SLURM_CONF': str(self.folder / 'slurm.conf'),
            'LD_LIBRARY_PATH': f'{libraries}:{libraries}/slurm-wlm',
            'PATH': f'{self.root}/usr/bin:{os.environ["PATH"]}',
        }

    def start(self, *command: str, **environment: str) -> Started:
        """`srun`, `sbatch` and the like, in the folder of the cluster, which all nodes share."""
        words = [*_within(self.controller, self.folder), *command]
        process, output = start(words, self.folder, self.environment() | environment)
        self.controller.running.append(process)
        return Request(process, output, self)

    def state(self) -> str:
        """Queue, and reasons of nodes that take no jobs."""
        answers = [self.start(*command) for command in (('squeue', '--long'), ('sinfo', '--long', '--list-reasons'))]
        for answer in answers:
            answer.process.wait(60)
        return '\n'.join(answer.output for answer in answers)


class Request(Started):
    """A command of SLURM; if it does not end in time, the state of the cluster is shown."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path, cluster: Slurm) -> None:
        super().__init__(process, file)
        self.cluster = cluster

    def end(self, seconds: float = BOUND) -> int:
        try:
            return super().end(seconds)
        except AssertionError as error:
            raise AssertionError(f'{error}\n{self.cluster.state()}') from None


@pytest.fixture(scope='session')
def slurm_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which Debian's packages of SLURM are unpacked; nothing is installed."""
    if shutil.which('apt-get') is None or shutil.which('dpkg') is None or os.geteuid() != 0:
        pytest.skip("needs root and Debian's apt-get, from which it takes SLURM")
    folder = tmp_path_factory.mktemp('slurm')
    got = subprocess.run(['apt-get', 'download', *PACKAGES], cwd=folder, capture_output=True, text=True, check=False)
    if got.returncode != 0:
        pytest.skip(f'SLURM cannot be downloaded: {(got.stderr.strip().splitlines() or ["no reason given"])[-1]}')
    root = folder / 'root'
    for package in folder.glob('*.deb'):
        subprocess.run(['dpkg', '-x', str(package), str(root)], check=True, capture_output=True)
    if not (root / LIBRARIES / 'slurm-wlm').is_dir():
        pytest.skip('SLURM of another architecture than x86-64 is not tested')
    return root


@pytest.fixture
def slurm(nodes: list[Node], slurm_packages: Path, tmp_path: Path) -> Iterator[Slurm]:
    """A cluster that is up."""
    folder = tmp_path / 'cluster'
    (folder / 'state').mkdir(parents=True)
    # A name server that never answers, as behind a firewall: all names that matter are in /etc/hosts.
    (folder / 'resolv.conf').write_text(f'nameserver {SILENT}\n')
    for node in nodes[:2]:
        ip('-n', node.namespace, 'route', 'add', 'default', 'via', nodes[2].address)
    names = ('gpu01', 'gpu02', 'login')
    (folder / 'hosts').write_text(
        '127.0.0.1 localhost\n' + ''.join(f'{node.address} {name}\n' for node, name in zip(nodes, names, strict=True))
    )
    lines = [
        f'NodeName={name} NodeHostname={name} NodeAddr={node.address} Port=17001 CPUs=4 RealMemory=4000'
        for node, name in zip(nodes[:2], names, strict=False)
    ]
    made = Slurm(slurm_packages, folder, nodes[2])
    programs = slurm_packages / 'usr/sbin'
    daemons: list[tuple[Node, str, Sequence[str]]] = [(nodes[2], names[2], (str(programs / 'slurmctld-wlm'), '-D', '-i'))]
    for node, name in zip(nodes[:2], names, strict=False):
        stepd = str(programs / 'slurmstepd-wlm')
        daemons.append((node, name, (str(programs / 'slurmd-wlm'), '-D', '-N', name, '-d', stepd)))
    with contextlib.ExitStack() as stack:
        # slurmd makes sockets there, whose paths have at most 108 characters
        spool = stack.enter_context(tempfile.TemporaryDirectory(prefix='slurm-', dir='/tmp', ignore_cleanup_errors=True))
        (folder / 'slurm.conf').write_text(
            CONFIGURATION.format(
                controller=names[2],
                address=nodes[2].address,
                folder=folder,
                spool=spool,
                plugins=slurm_packages / LIBRARIES / 'slurm-wlm',
                nodes='\n'.join(lines),
            )
        )
        for node, name, command in daemons:
            output = stack.enter_context((folder / f'start-{name}.txt').open('w'))
            process = subprocess.Popen(
                [*_within(node, folder, name), *command],
                cwd=folder,
                env=made.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            node.running.append(process)
        end = time.monotonic() + BOUND / 3
        while (state := _idle(made)) != '2':
            if time.monotonic() > end:
                pytest.skip(f'the nodes of SLURM did not come up ({state}); see {folder}')
            time.sleep(0.5)
        yield made


def _within(node: Node, folder: Path, name: str = 'login') -> list[str]:
    """The prefix of a command in the network of a node, with names of its own: not `ip netns exec`, which hides the cgroups."""
    bind = 'mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/resolv.conf" /etc/resolv.conf'
    script = f'{bind} && hostname "$2" && shift 2 && exec "$@"'
    network = f'--net=/var/run/netns/{node.namespace}'
    return ['nsenter', network, 'unshare', '--mount', '--uts', 'sh', '-c', script, 'sh', str(folder), name]


def _idle(slurm: Slurm) -> str:
    asked = slurm.start('sinfo', '-h', '-t', 'idle', '-o', '%D')
    asked.process.wait(60)
    return asked.output.strip()
