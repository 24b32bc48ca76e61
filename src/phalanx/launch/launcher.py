"""Course of a launch: rendezvous, preflight, ranks, and the agreement of the nodes on the cause of the end."""

import contextlib
import fcntl
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from torch.distributed.elastic.multiprocessing.api import SignalException

from phalanx.launch import preflight
from phalanx.launch.agent import Attempt, Failure, Outcome, run_attempt
from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import Flags
from phalanx.launch.members import Members, NodeInfo, shorten
from phalanx.launch.ports import RendezvousError
from phalanx.launch.remote import stop_when_stdin_closes
from phalanx.launch.rendezvous import Rendezvous, RendezvousLostError, get_token, print_line
from phalanx.launch.watchdog import HEARTBEAT, Verdict, Watchdog
from phalanx.parallel.dist import HANG_TIMEOUT
from phalanx.parallel.flight_recorder import describe_last_calls, read_records
from phalanx.parallel.heartbeat import FOLDER
from phalanx.system.compiler import use_own_cache
from phalanx.system.disk import LONGEST_TMPDIR, remove_own
from phalanx.system.stops import stop_signals

# Names of the scratch folder of a launch and of the mark in it. Only launchers use them, so such a folder may be removed.
PREFIX, MARK = 'phalanx-launch-', '.scratch-of-a-phalanx-launcher'
LAST_ANSWER = 5  # seconds for the last request of the watchdog: an answer during interpreter shutdown would abort the process


def launch(
    command: Sequence[str],
    cluster: Cluster,
    flags: Flags,
    log_dir: Path,
    facts: Callable[[], NodeInfo],
    *,
    follow: bool = False,
) -> int:
    """Run `command` once per rank; return the exit status of the launch.

    0; 1 with the first cause on the last line; 2 if nothing was started; 130 or 143 if it was stopped. `facts`: must agree on
    all nodes; called only if there are several. `follow`: rank 0 gets a log like the others, copied to the terminal.
    """
    stop_when_stdin_closes()
    forward_pauses()
    try:
        raise_at_stop_signals()
        return _launch(command, cluster, flags, log_dir, facts, follow)
    except RendezvousError as error:
        print_line(str(error))
        return 2
    except RendezvousLostError as error:
        print(f'the run failed: {error}', file=sys.stderr, flush=True)
        return 1
    except SignalException as stopped:  # before the first attempt, or between two
        print('stopped while no rank was running', file=sys.stderr, flush=True)
        return 128 + int(stopped.sigval)


def _launch(
    command: Sequence[str], cluster: Cluster, flags: Flags, log_dir: Path, facts: Callable[[], NodeInfo], follow: bool
) -> int:
    trouble = ''
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        trouble = f'{log_dir}: the folder for logs cannot be created: {error.strerror}'
        if cluster.rendezvous is None:
            print_line(trouble)
            return 2
    os.environ.update(cluster.environment())
    os.environ['PHALANX_LOG_DIR'] = str(log_dir.absolute())
    os.environ['PHALANX_LAUNCHER'] = str(os.getpid())
    os.environ['PHALANX_ADDRESS'] = cluster.address if cluster.rendezvous else ''
    use_own_cache()  # before the ranks inherit the environment
    with scratch_folder() as scratch:
        os.environ |= {FOLDER: str(scratch), HANG_TIMEOUT: str(flags.hang_timeout)}
        first = Attempt(cluster.ranks_per_node, scratch, log_dir.absolute(), flags.log_append, follow)
        run = _Launch(command, cluster, flags, first)
        return run.run_alone() if cluster.rendezvous is None else run.run_together(lambda: facts() | {'trouble': trouble})


def raise_at_stop_signals() -> None:
    """Make stop signals raise SignalException, so that cleanup runs; during attempts, torch's agent does the same."""

    def end(number: int, frame: object) -> None:
        raise SignalException(f'signal {number}', signal.Signals(number))

    for number in stop_signals():
        signal.signal(number, end)


def forward_pauses() -> None:
    """Make Ctrl-Z pause the ranks too, and `fg` or SIGCONT resume them: each rank is in a session of its own."""

    def pause(number: int, frame: object) -> None:
        ranks = psutil.Process().children(recursive=True)
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.suspend()
        os.kill(os.getpid(), signal.SIGSTOP)  # returns with SIGCONT
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.resume()

    signal.signal(signal.SIGTSTP, pause)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Scratch folder of this launch, also for temporary files of its ranks, which killed ranks leave behind.

    Folders of killed launchers are removed first: PREFIX* of this user with a file MARK, which a running launcher keeps locked.
    """
    root = Path(tempfile.gettempdir())
    for mark in root.glob(f'{PREFIX}*/{MARK}'):
        with contextlib.suppress(OSError), mark.open('r+') as held:  # of another user, or of a running launcher
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if mark.parent.stat(follow_symlinks=False).st_uid == os.getuid() and not mark.parent.is_symlink():
                remove_own(mark.parent)
    folder = root / f'{PREFIX}{secrets.token_urlsafe(6)}'
    try:  # a stop signal may be raised as soon as the folder is there, which would outlive a TemporaryDirectory
        folder.mkdir(mode=0o700)
        with (folder / f'{MARK}.new').open('w') as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            (folder / f'{MARK}.new').rename(folder / MARK)  # locked before another launcher can find it
            if len(own := str(folder / 'tmp')) <= LONGEST_TMPDIR:
                Path(own).mkdir()
                os.environ['TMPDIR'] = own
            yield folder
    finally:
        with contextlib.suppress(OSError):  # of files that a rank still writes
            remove_own(folder)


class _Launch:
    """Attempts of one launch, within the budget of restarts."""

    def __init__(self, command: Sequence[str], cluster: Cluster, flags: Flags, first: Attempt) -> None:
        self.command, self.cluster, self.flags, self.first = command, cluster, flags, first
        self.restarts = flags.max_restart or 0
        self.begun = time.monotonic()
        self.explanation = ''  # of a hang, see `Watchdog`
        self.last_calls = ''  # of the ranks of this node that reported an error, or a hang

    # On one node.

    def run_alone(self) -> int:
        """Exit status of a launch on this node alone."""
        preflight.warn_about_this_node(self.first.log_dir)
        attempt = self.first
        while True:
            watchdog = Watchdog(attempt.scratch, attempt.ranks, self.flags.hang_timeout)
            outcome, verdict = self.run_watched(attempt, watchdog)
            if outcome.status != 1 and outcome.failure is None:
                return outcome.status
            cause = self.format_failure(outcome.failure, verdict, attempt.nodes * attempt.ranks_per_node)
            if self.restarts == 0 or outcome.was_stopped:
                print(cause, file=sys.stderr, flush=True)
                return 1
            self.restart(cause)
            attempt = replace(attempt, number=attempt.number + 1)

    # On several nodes.

    def run_together(self, facts: Callable[[], NodeInfo]) -> int:
        """Exit status of a launch on several nodes: each round joins, checks, runs an attempt and agrees on its end."""
        token = get_token(os.environ, self.flags.job_id)
        rendezvous = Rendezvous(self.cluster, token, self.flags.join_timeout, self.flags.heartbeat_timeout)
        own = {'pid': os.getpid(), 'wanted_rank': self.cluster.wanted_rank, 'max_restart': self.restarts}
        own |= preflight.node_facts(self.cluster) | facts()
        while True:
            members = rendezvous.join(own)
            endpoint = f'{rendezvous.address}:{members.port}'
            attempt = replace(
                self.first, number=members.attempt, node_rank=members.position, nodes=members.count, endpoint=endpoint
            )
            # All nodes are here: compare them and measure the link before any rank starts.
            link = preflight.check_nodes(rendezvous, members)
            print_line(
                f'{self.cluster.address} ({self.cluster.interface}) is node {members.position + 1} of {attempt.nodes}, '
                f'ranks {attempt.ranks.start} to {attempt.ranks.stop - 1} of {attempt.nodes * attempt.ranks_per_node}; {link}; '
                f'logs in {attempt.log_dir}'
            )
            watchdog = Watchdog(attempt.scratch, attempt.ranks, self.flags.hang_timeout, rendezvous, members)
            outcome, verdict = self.run_watched(attempt, watchdog)
            # The ranks here have ended: publish why, wait for the other nodes, and decide together.
            self.report(rendezvous, members, watchdog, outcome, verdict)
            missing, verdict, failure = self.conclude(rendezvous, members, watchdog)
            status = self.decide_status(members, outcome, verdict, failure)
            if status is not None:
                rendezvous.leave(members, missing)
                return status

    def report(
        self, rendezvous: Rendezvous, members: Members, watchdog: Watchdog, outcome: Outcome, verdict: Verdict | None
    ) -> None:
        """Publish the end of the attempt on this node."""
        failure = outcome.failure
        if failure is not None and (verdict is None or verdict['kind'] == 'failed'):
            failure = replace(failure, address=self.cluster.address)
            rendezvous.put(members.key('failure', rendezvous.number), vars(failure))
            cause = f'rank {failure.rank} on {self.cluster.address}: {failure.cause}'
            details = {'cause': cause, 'stopped': outcome.was_stopped, 'is_consequence': failure.is_consequence}
            watchdog.decide({'kind': 'failed', **details})
        elif outcome.was_stopped and verdict is None:
            watchdog.decide({'kind': 'stopped', 'status': outcome.status, 'cause': 'stopped'})
        rendezvous.put(members.key('ended', rendezvous.number), outcome.status)

    def conclude(
        self, rendezvous: Rendezvous, members: Members, watchdog: Watchdog
    ) -> tuple[list[int], Verdict, Failure | None]:
        """Lost nodes (on the first node), common verdict and first failure, which the first node publishes for all."""
        key = members.common('end')
        if watchdog.is_first:
            missing = self.await_ends(watchdog)
            verdict, failure = self.agree(rendezvous, members, missing)
            rendezvous.put(key, [verdict, failure and vars(failure)])
            return missing, verdict, failure
        while (end := rendezvous.get(key)) is None:  # raises RendezvousLostError if the first node is lost
            time.sleep(HEARTBEAT)
        return [], end[0], end[1] and Failure(**end[1])

    def await_ends(self, watchdog: Watchdog) -> list[int]:
        """On the first node: wait until all nodes have reported the end of their ranks; return the lost ones.

        Ranks of other nodes may go on for long, to save for example: only missing heartbeats end the wait.
        """
        watchdog.seen.clear()  # each node gets the full timeout
        while True:
            verdict, silent = watchdog.listen()
            lost = [number for number, seconds in silent.items() if seconds > self.flags.heartbeat_timeout]
            if len(lost) == len(silent):
                return lost
            if verdict is None:  # the ranks of others go on, and wait for a node that the first watches
                watchdog.detect_loss(silent)
                watchdog.detect_hang({})
            time.sleep(HEARTBEAT)

    def agree(self, rendezvous: Rendezvous, members: Members, missing: Sequence[int]) -> tuple[Verdict, Failure | None]:
        """On the first node: verdict on the end of the attempt (`done` without a failure), and the first failure."""
        verdict, *found = rendezvous.get_all([members.verdict, *members.keys('failure')])
        failures = [Failure(**info) for info in found if info is not None]
        first = min(failures, key=lambda failure: (failure.is_consequence, failure.when), default=None)
        if missing and (first is None or first.is_consequence):
            names = shorten([members.name(number) for number in missing])
            verdict, first = {'kind': 'lost', 'number': missing[0], 'cause': f'{names} is lost'}, None
        return verdict or {'kind': 'done'}, first

    def decide_status(self, members: Members, outcome: Outcome, verdict: Verdict, failure: Failure | None) -> int | None:
        """Exit status, or None to start another attempt."""
        kind = verdict['kind']
        if kind == 'newcomer':
            print_line(f'{verdict["cause"]}; the ranks have saved and start again with one more node')
            return None
        if kind in ('done', 'stopped'):
            return outcome.status if kind == 'done' or outcome.was_stopped else int(verdict['status'])
        cause = self.format_failure(failure, verdict, members.count * self.cluster.ranks_per_node)
        lost_first = kind == 'lost' and verdict['number'] == 0
        elastic = self.cluster.min_nodes < self.cluster.max_nodes
        if kind == 'lost' and not lost_first and elastic and members.count - 1 >= self.cluster.min_nodes:
            print_line(f'{cause}; going on with the nodes that are left, from the last checkpoint')
            return None
        if self.restarts and not lost_first and not verdict.get('stopped'):
            self.restart(cause)
            return None
        print(cause, file=sys.stderr, flush=True)
        return 1

    # On one node or several.

    def run_watched(self, attempt: Attempt, watchdog: Watchdog) -> tuple[Outcome, Verdict | None]:
        """Run an attempt under a watchdog; return its outcome and the verdict of the watchdog."""
        watchdog.start()
        try:
            return run_attempt(self.command, attempt, watchdog.killed), watchdog.verdict
        finally:
            watchdog.over.set()
            watchdog.join(LAST_ANSWER)
            self.explanation = watchdog.explanation
            self.last_calls = describe_last_calls(read_records(attempt.scratch, attempt.ranks))

    def restart(self, cause: str) -> None:
        self.restarts -= 1
        left = f'{self.restarts} restart{"" if self.restarts == 1 else "s"} left'
        print_line(f'{cause}\nphalanx: starting again from the last checkpoint ({left})')

    def format_failure(self, failure: Failure | None, verdict: Verdict | None, ranks: int) -> str:
        """Last lines of a failed run: the log of the failed rank, then the first cause."""
        after = f'the run failed after {time.monotonic() - self.begun:.0f} s: '
        if failure is None or (verdict is not None and verdict['kind'] in ('hang', 'lost')):
            cause = str(verdict['cause']) if verdict else 'a rank ended'
            return '; '.join(filter(None, (after + cause, self.explanation)))
        lines = [f'[rank {failure.rank}] {line}' for line in failure.tail]
        place = f'rank {failure.rank} of {ranks}' + (f' on {failure.address}' if self.cluster.rendezvous else '')
        cause = failure.cause
        if 'SIGABRT' in cause and self.last_calls:
            cause += f'; so gloo ends a rank that receives a tensor larger than its own; {self.last_calls}'
        return '\n'.join([*lines, f'{after}{place} (log: {failure.log}): {cause}'])
