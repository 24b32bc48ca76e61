"""Launch on an existing Ray cluster (`phalanx launch --ray ADDRESS`): one Ray worker per rank, and its command as a child.

Ray finds the devices and says when a worker is lost; the ranks meet by themselves, as under any launcher of ranks. After a
failure all workers are replaced, and the run goes on from its last checkpoint. Hangs are detected here, from the heartbeats
that the workers pass on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException

from phalanx.launch.child import PR_SET_PDEATHSIG
from phalanx.launch.flags import Flags
from phalanx.launch.launcher import raise_at_stop_signals
from phalanx.launch.names import parse_nodes
from phalanx.launch.rendezvous import print_line
from phalanx.launch.watchdog import RECORDS, describe_hang, is_hanging
from phalanx.parallel.dist import HANG_TIMEOUT
from phalanx.parallel.flight_recorder import explain, read_records, request_records
from phalanx.parallel.heartbeat import FOLDER, Beat, read_beats
from phalanx.system.stops import STACKS, STOP_STATUSES

POLL = 0.3  # seconds between two looks at the workers
REGROUP = 10  # seconds in which Ray must place workers before fewer of them are tried
CONNECT = 10  # seconds for the cluster to answer
GRACE = 10  # seconds for the other ranks to end after one has failed
NOT_OURS = ('gpus', 'ips', 'master', 'rank', 'host', 'ssh', 'hostfile', 'start_port')  # flags of what Ray decides
FORWARDED = ('PHALANX_', 'NCCL_', 'GLOO_', 'TORCH_', 'OMP_', 'HF_')  # first letters of variables


class Worker:
    """Ray actor of one rank; it and its command end together."""

    def __init__(self) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix='phalanx-ray-')
        self.folder = Path(self.scratch.name)  # of heartbeats, records and stacks
        self.process: subprocess.Popen[bytes] | None = None

    def place(self) -> tuple[str, str, int]:
        """Ray's node, its address, and a port that is free there."""
        import ray

        with socket.socket() as free:
            free.bind(('', 0))
            return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), free.getsockname()[1]

    def start(self, words: Sequence[str], environment: dict[str, str], folder: str) -> None:
        """Start the command in `folder`. Raises OSError if there is no such folder."""
        libc, self.output = ctypes.CDLL(None), tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor lives
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, **environment, FOLDER: self.scratch.name},
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        self.shown = 0

    def poll(self) -> tuple[str, int | None, dict[int, Beat]]:
        """New output of the command, its exit status once it has ended, and the heartbeat of its rank."""
        assert self.process is not None
        status = self.process.poll()
        new = os.pread(self.output.fileno(), os.fstat(self.output.fileno()).st_size - self.shown, self.shown)
        new = new if status is not None else new[: new.rfind(b'\n') + 1]  # whole lines
        self.shown += len(new)
        return new.decode(errors='replace'), status, read_beats(self.folder)

    def explain(self, rank: int) -> tuple[dict[int, dict[str, Any]], str]:
        """Records of the collectives of this rank, and its stacks; empty if it cannot answer."""
        request_records(self.folder, [rank])
        self.stop(STACKS)
        end = time.monotonic() + RECORDS
        while not (records := read_records(self.folder, [rank])) and time.monotonic() < end:
            time.sleep(POLL)
        return records, (self.folder / f'stack.{rank}').read_text(errors='replace').strip()

    def stop(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def close(self) -> None:
        """End the command and remove its folder, which an actor that Ray kills would leave behind."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.scratch.cleanup()


@dataclass(frozen=True)
class Request:
    """Command, and the number of its ranks: `most` to `least` groups of `each`, where the ranks of a group share a node.

    `strategy`: of Ray, whether each group has a node of its own.
    """

    words: Sequence[str]
    least: int
    most: int
    each: int
    strategy: str
    device: str  # Ray's resource of which each rank gets one: GPU or CPU
    hang_timeout: float  # seconds without progress


def launch_on_ray(address: str, words: Sequence[str], flags: Flags) -> int:
    """Run `python WORDS...` as the ranks of a run on a Ray cluster; return the exit status, as `launcher.launch` does.

    Raises ValueError for a wrong request, if Ray is not installed, and if no cluster answers.
    """
    for name in NOT_OURS:
        if getattr(flags, name) not in (None, False):
            raise ValueError(f'--{name}: with --ray, Ray chooses nodes and devices; give --nnodes N and --nproc_per_node N')
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError(
            '--ray needs the package ray: pip install "phalanx-vision[ray]", on every node of the cluster'
        ) from None
    host, _, port = address.rpartition(':')
    try:
        if host and '/' not in host and port.isdecimal():  # Ray itself would try for minutes, with pages of warnings
            socket.create_connection((host, int(port)), timeout=CONNECT).close()
        ray.init(address=address, log_to_driver=False, logging_level='ERROR')
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f'--ray {address}: no Ray cluster answers there ({str(error).splitlines()[0]})') from None
    try:
        request = _request(words, flags, ray.cluster_resources())
        return _run(ray, request, flags)
    finally:
        ray.shutdown()


def _request(words: Sequence[str], flags: Flags, resources: dict[str, float]) -> Request:
    """Request for the resources of a cluster. Raises ValueError."""
    gpus = int(resources.get('GPU', 0))
    if flags.nnodes is None and flags.nproc_per_node is None and not gpus:
        raise ValueError('the Ray cluster has no GPU: give the number of ranks, --nproc_per_node N')
    least, most = parse_nodes(flags.nnodes or ('1' if flags.nproc_per_node else str(gpus)), f'--nnodes {flags.nnodes}')
    if flags.nnodes is not None and flags.nproc_per_node is None and gpus:
        raise ValueError(f'--nnodes {flags.nnodes} with --ray: give --nproc_per_node N, the number of ranks on each node')
    strategy, each, device = 'STRICT_SPREAD' if flags.nnodes else 'PACK', flags.nproc_per_node or 1, 'GPU' if gpus else 'CPU'
    return Request(words, least, most, each, strategy, device, flags.hang_timeout)


def _run(ray: Any, request: Request, flags: Flags) -> int:
    """Exit status of the attempts within the budget of restarts."""
    left, attempt = flags.max_restart or 0, 0
    raise_at_stop_signals()
    try:
        while True:
            group = _place(ray, request, flags.join_timeout)
            if group is None:
                return 2
            try:
                status, cause = _attempt(ray, request, group, attempt)
            finally:
                ray.util.remove_placement_group(group)  # ends its workers
            if status != 1:
                return status
            if left == 0:
                print(f'the run failed: {cause}', file=sys.stderr, flush=True)
                return 1
            left, attempt = left - 1, attempt + 1
            print_line(f'{cause}\nphalanx: starting again from the last checkpoint ({left} restart{"s" * (left != 1)} left)')
    except SignalException as stopped:
        print('stopped while no rank was running', file=sys.stderr, flush=True)
        return 128 + int(stopped.sigval)


def _place(ray: Any, request: Request, patience: float) -> Any:
    """Placement group of as many groups of ranks as there is room for now; None, with a message, if there is too little."""
    for count in range(request.most, request.least - 1, -1):
        bundles = [{request.device: request.each, **({'CPU': request.each} if request.device != 'CPU' else {})}] * count
        group = ray.util.placement_group(bundles, strategy=request.strategy)
        if group.wait(patience if count == request.least else REGROUP):
            return group
        ray.util.remove_placement_group(group)
    wanted = f'{request.least} x {request.each} {request.device}'
    wanted += ' on as many nodes' if request.strategy == 'STRICT_SPREAD' else ''
    print_line(f'the Ray cluster had no room for {wanted} within {patience:.0f} s; it has {ray.available_resources()}')
    return None


def _attempt(ray: Any, request: Request, group: Any, number: int) -> tuple[int, str]:
    """Exit status of one start of all ranks, and the cause of a failure."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    actor = ray.remote(Worker)
    workers = [
        actor.options(
            num_cpus=1,
            num_gpus=int(request.device == 'GPU'),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank // request.each),
        ).remote()
        for rank in range(group.bundle_count * request.each)
    ]
    stopped: int | None = None
    try:
        try:
            hosts = _start(ray, workers, request, number)
        except (ray.exceptions.RayError, OSError) as error:
            return 1, f'a rank could not be started on the Ray cluster: {str(error).splitlines()[-1]}'
        statuses: list[int | None] = [None] * len(workers)
        last, deadline, beats = [''] * len(workers), float('inf'), dict[int, Beat]()
        while None in statuses and time.monotonic() < deadline:
            try:
                for rank, worker in enumerate(workers):
                    if statuses[rank] is None:
                        try:
                            text, statuses[rank], beat = ray.get(worker.poll.remote())
                        except ray.exceptions.RayError as error:
                            return 1, f'rank {rank} of {len(workers)} on {hosts[rank]} is lost ({str(error).splitlines()[0]})'
                        beats |= beat
                        last[rank] = text.strip().rpartition('\n')[2] or last[rank]
                        if rank == 0:
                            sys.stdout.write(text)
                            sys.stdout.flush()
                if is_hanging(beats, request.hang_timeout):
                    return 1, _explain_hang(ray, workers, describe_hang(beats, request.hang_timeout))
                if any(status not in (None, 0, *STOP_STATUSES) for status in statuses):
                    deadline = min(deadline, time.monotonic() + GRACE)
                time.sleep(POLL)
            except SignalException as signalled:
                stopped = stopped or int(signalled.sigval)
                for worker in workers:
                    worker.stop.remote(stopped)
    finally:
        ray.wait([worker.close.remote() for worker in workers], num_returns=len(workers), timeout=GRACE)
        for worker in workers:
            ray.kill(worker)
    failed = [rank for rank, status in enumerate(statuses) if status not in (0, None, *STOP_STATUSES)]
    if stopped is not None and not failed:
        return 128 + stopped, ''
    if not failed:
        return max(status or 0 for status in statuses), ''
    rank = failed[0]
    if statuses[rank] == 2:
        return 2, ''
    return 1, f'rank {rank} of {len(workers)} on {hosts[rank]}: {last[rank]} (exit status {statuses[rank]})'


def _explain_hang(ray: Any, workers: list[Any], cause: str) -> str:
    """Print the stacks of all ranks; return the cause with the collective in which ranks differ."""
    answers = [worker.explain.remote(rank) for rank, worker in enumerate(workers)]
    ray.wait(answers, num_returns=len(answers), timeout=2 * RECORDS)
    records = dict[int, dict[str, Any]]()
    for rank, answer in enumerate(answers):
        try:
            found, stack = ray.get(answer, timeout=0)
        except ray.exceptions.RayError:
            found, stack = {}, ''
        records |= found
        for line in (stack or 'no answer: its process is stopped, or waits in the kernel').splitlines():
            print_line(f'[rank {rank}] {line}')
    return '; '.join(filter(None, (cause, explain(records))))


def _start(ray: Any, workers: list[Any], request: Request, number: int) -> list[str]:
    """Start the command on all workers, ordered by node; return their addresses."""
    places = dict(zip(workers, ray.get([worker.place.remote() for worker in workers]), strict=True))
    nodes = list(dict.fromkeys(node for node, _, _ in places.values()))
    workers.sort(key=lambda worker: nodes.index(places[worker][0]))
    ranks = [nodes.index(places[worker][0]) for worker in workers]
    shared = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
    shared |= {'RAY_ADDRESS': ray.get_runtime_context().gcs_address, 'WORLD_SIZE': str(len(workers))}
    shared |= {'MASTER_ADDR': places[workers[0]][1], 'MASTER_PORT': str(places[workers[0]][2])}
    shared |= {'TORCHELASTIC_RESTART_COUNT': str(number), 'PYTHONUNBUFFERED': '1', HANG_TIMEOUT: str(request.hang_timeout)}
    starts = []
    for rank, worker in enumerate(workers):
        own = {'RANK': rank, 'LOCAL_RANK': ranks[:rank].count(ranks[rank]), 'LOCAL_WORLD_SIZE': ranks.count(ranks[rank])}
        environment = shared | {name: str(value) for name, value in own.items()}
        if len(set(map(ranks.count, ranks))) > 1:
            del environment['LOCAL_WORLD_SIZE']  # it would mean the same number on each node
        starts.append(worker.start.remote(request.words, environment, str(Path.cwd())))
    ray.get(starts)
    return [places[worker][1] for worker in workers]
