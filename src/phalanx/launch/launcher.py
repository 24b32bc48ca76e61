"""A launch from beginning to end: rendezvous, preflight, ranks, and the agreement on why they ended."""

import contextlib
import fcntl
import os
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
from phalanx.launch.remote import stop_when_stdin_closes
from phalanx.launch.rendezvous import Members, NodeInfo, Rendezvous, RendezvousError, RendezvousLostError, get_token, print_line
from phalanx.launch.watchdog import HEARTBEAT, Verdict, Watchdog
from phalanx.parallel.dist import HANG_TIMEOUT
from phalanx.parallel.heartbeat import FOLDER
from phalanx.system.compiler import use_own_cache
from phalanx.system.disk import LONGEST_TMPDIR, remove_own
from phalanx.system.stops import stop_signals

# Of the folder of a launch, and of the file in it that says so. Both are for launchers alone: what has them may be removed.
PREFIX, MARK = 'phalanx-launch-', '.scratch-of-a-phalanx-launcher'
LAST_ANSWER = 5  # seconds for the watchdog's last question: an answer while the interpreter ends would abort the process


def launch(
    command: Sequence[str],
    cluster: Cluster,
    flags: Flags,
    log_dir: Path,
    facts: Callable[[], NodeInfo],
    *,
    follow: bool = False,
) -> int:
    """Runs `command` once a rank; the exit status of the whole.

    0; 1 with the first cause on the last line; 2 when nothing was started; 130 or 143 when it was stopped. `facts` is what must
    be the same on all nodes, asked only when there are several. `follow`: rank 0 gets a log like all others, shown here.
    """
    stop_when_stdin_closes()
    forward_pauses()
    raise_at_stop_signals()
    trouble = ''
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        trouble = f'{log_dir}: the folder for logs cannot be created: {error}'
        if cluster.rendezvous is None:
            print_line(trouble)
            return 2
    os.environ.update(cluster.environment())
    os.environ['PHALANX_LOG_DIR'] = str(log_dir.absolute())
    os.environ['PHALANX_LAUNCHER'] = str(os.getpid())
    os.environ['PHALANX_ADDRESS'] = cluster.address if cluster.rendezvous else ''
    use_own_cache()  # compiled kernels are worth keeping
    with scratch_folder() as scratch:
        os.environ |= {FOLDER: str(scratch), HANG_TIMEOUT: str(flags.hang_timeout)}
        try:
            first = Attempt(cluster.ranks_per_node, scratch, log_dir.absolute(), flags.log_append, follow)
            run = _Launch(command, cluster, flags, first)
            return run.alone() if cluster.rendezvous is None else run.together(lambda: facts() | {'trouble': trouble})
        except RendezvousError as error:
            print_line(str(error))
            return 2
        except RendezvousLostError as error:
            print(f'the run failed: {error}', file=sys.stderr, flush=True)
            return 1
        except SignalException as stopped:  # while no rank runs: before the first attempt, or between two
            print('stopped while no rank was running', file=sys.stderr, flush=True)
            return 128 + int(stopped.sigval)


def raise_at_stop_signals() -> None:
    """Lets a signal that ends a run clear up before the first attempt too, as torch's agent does from then on."""

    def end(number: int, frame: object) -> None:
        raise SignalException(f'signal {number}', signal.Signals(number))

    for number in stop_signals():
        signal.signal(number, end)


def forward_pauses() -> None:
    """Lets Ctrl-Z pause the ranks with their launcher, and `fg` or SIGCONT both: ranks are in sessions of their own."""

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
    """A folder for this launch and for the temporary files of its ranks, which a rank that is killed leaves behind.

    What launchers that were killed have left is removed first. It is known by a mark that nothing else uses: a folder PREFIX*
    of this user that holds a file MARK, which a living launcher keeps locked.
    """
    root = Path(tempfile.gettempdir())
    for mark in root.glob(f'{PREFIX}*/{MARK}'):
        with contextlib.suppress(OSError), mark.open('r+') as held:  # of another user, or alive
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if mark.parent.stat(follow_symlinks=False).st_uid == os.getuid() and not mark.parent.is_symlink():
                remove_own(mark.parent)
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with (folder / f'{MARK}.new').open('w') as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            (folder / f'{MARK}.new').rename(folder / MARK)  # held before another launcher can find it
            if len(own := str(folder / 'tmp')) <= LONGEST_TMPDIR:
                Path(own).mkdir()
                os.environ['TMPDIR'] = own
            yield folder


class _Launch:
    """Attempt after attempt, as many as the budget of restarts allows."""

    def __init__(self, command: Sequence[str], cluster: Cluster, flags: Flags, first: Attempt) -> None:
        self.command, self.cluster, self.flags, self.first = command, cluster, flags, first
        self.restarts = flags.max_restart or 0
        self.begun = time.monotonic()

    # On one node.

    def alone(self) -> int:
        preflight.warn_about_this_node(self.first.log_dir)
        attempt = self.first
        while True:
            watchdog = Watchdog(attempt.scratch, attempt.ranks, self.flags.hang_timeout)
            outcome, verdict = self.watched(attempt, watchdog)
            if outcome.status != 1 and outcome.failure is None:
                return outcome.status
            cause = self.last_words(outcome.failure, verdict, attempt.nodes * attempt.ranks_per_node, 'this node')
            if self.restarts == 0 or outcome.was_stopped:
                print(cause, file=sys.stderr, flush=True)
                return 1
            self.restart(cause)
            attempt = replace(attempt, number=attempt.number + 1)

    # On several.

    def together(self, facts: Callable[[], NodeInfo]) -> int:
        token = get_token(os.environ, self.flags.job_id)
        rendezvous = Rendezvous(self.cluster, token, self.flags.join_timeout, self.flags.heartbeat_timeout)
        own = {'pid': os.getpid(), 'wanted_rank': self.cluster.wanted_rank, 'max_restart': self.restarts}
        own |= preflight.node_facts(self.cluster) | facts()
        while True:
            members = rendezvous.join(own)
            node_rank, endpoint = members.numbers.index(rendezvous.number), f'{rendezvous.address}:{members.port}'
            attempt = replace(
                self.first, number=members.attempt, node_rank=node_rank, nodes=len(members.nodes), endpoint=endpoint
            )
            link = preflight.check_nodes(rendezvous, members)
            print_line(
                f'{self.cluster.address} ({self.cluster.interface}) is node {node_rank + 1} of {attempt.nodes}, '
                f'ranks {attempt.ranks.start} to {attempt.ranks.stop - 1} of {attempt.nodes * attempt.ranks_per_node}; {link}; '
                f'logs in {attempt.log_dir}'
            )
            watchdog = Watchdog(attempt.scratch, attempt.ranks, self.flags.hang_timeout, rendezvous, members)
            outcome, verdict = self.watched(attempt, watchdog)
            self.report(rendezvous, members, watchdog, outcome, verdict)
            missing = self.await_ends(watchdog)
            verdict, failure = self.agreed(rendezvous, members, missing)
            status = self.ending(members, outcome, verdict, failure)
            if status is not None:
                rendezvous.leave(members, missing)
                return status

    def report(
        self, rendezvous: Rendezvous, members: Members, watchdog: Watchdog, outcome: Outcome, verdict: Verdict | None
    ) -> None:
        """Publishes how the attempt ended here."""
        failure = outcome.failure
        if failure is not None and (verdict is None or verdict['kind'] == 'failed'):
            rendezvous.put(members.key('failure', rendezvous.number), vars(failure))
            cause = f'rank {failure.rank} on {self.cluster.address}: {failure.cause}'
            said = {'cause': cause, 'stopped': outcome.was_stopped, 'is_consequence': failure.is_consequence}
            watchdog.decide({'kind': 'failed', **said})
        elif outcome.was_stopped and verdict is None:
            watchdog.decide({'kind': 'stopped', 'status': outcome.status, 'cause': 'stopped'})
        rendezvous.put(members.key('ended', rendezvous.number), outcome.status)

    def await_ends(self, watchdog: Watchdog) -> list[int]:
        """The nodes that did not say that their ranks have ended: they are lost.

        Without a failure anywhere, ranks of other nodes may go on for long (they save, say): only silence ends the wait.
        """
        watchdog.seen.clear()  # each gets the whole time
        while True:
            _, silent = watchdog.listen()
            lost = [number for number, seconds in silent.items() if seconds > self.flags.heartbeat_timeout]
            if len(lost) == len(silent):
                return lost
            time.sleep(HEARTBEAT)

    def agreed(self, rendezvous: Rendezvous, members: Members, missing: Sequence[int]) -> tuple[Verdict, Failure | None]:
        """What all nodes take for the reason that the attempt ended: `done` when it did not fail anywhere."""
        verdict, *found = rendezvous.get_all([members.verdict, *members.keys('failure')])
        failures = [Failure(**info) for info in found if info is not None]
        first = min(failures, key=lambda failure: (failure.is_consequence, failure.when), default=None)
        if missing and (first is None or first.is_consequence):
            names = ', '.join(members.name(number) for number in missing)
            verdict, first = {'kind': 'lost', 'number': missing[0], 'cause': f'{names} is lost'}, None
        return verdict or {'kind': 'done'}, first

    def ending(self, members: Members, outcome: Outcome, verdict: Verdict, failure: Failure | None) -> int | None:
        """The exit status, or None to go on with another attempt."""
        kind = verdict['kind']
        if kind == 'newcomer':
            print_line(f'{verdict["cause"]}; the ranks have saved and start again with one more node')
            return None
        if kind in ('done', 'stopped'):
            return outcome.status if kind == 'done' or outcome.was_stopped else int(verdict['status'])
        where = members.nodes[failure.rank // self.cluster.ranks_per_node][1]['address'] if failure else ''
        ranks = len(members.nodes) * self.cluster.ranks_per_node
        cause = self.last_words(failure, verdict, ranks, where)
        lost_first = kind == 'lost' and verdict['number'] == members.nodes[0][0]
        elastic = self.cluster.min_nodes < self.cluster.max_nodes
        if kind == 'lost' and not lost_first and elastic and len(members.nodes) - 1 >= self.cluster.min_nodes:
            print_line(f'{cause}; going on with the nodes that are left, from the last checkpoint')
            return None
        if self.restarts and not lost_first and not verdict.get('stopped'):
            self.restart(cause)
            return None
        print(cause, file=sys.stderr, flush=True)
        return 1

    # Both.

    def watched(self, attempt: Attempt, watchdog: Watchdog) -> tuple[Outcome, Verdict | None]:
        watchdog.start()
        try:
            return run_attempt(self.command, attempt, watchdog.killed), watchdog.verdict
        finally:
            watchdog.over.set()
            watchdog.join(LAST_ANSWER)

    def restart(self, cause: str) -> None:
        self.restarts -= 1
        left = f'{self.restarts} restart{"" if self.restarts == 1 else "s"} left'
        print_line(f'{cause}\nphalanx: starting again from the last checkpoint ({left})')

    def last_words(self, failure: Failure | None, verdict: Verdict | None, ranks: int, where: str) -> str:
        """The last lines of a run that failed, its first cause at the very end."""
        after = f'the run failed after {time.monotonic() - self.begun:.0f} s: '
        if failure is None or (verdict is not None and verdict['kind'] in ('hang', 'lost')):
            return after + (str(verdict['cause']) if verdict else 'a rank ended')
        lines = [f'[rank {failure.rank}] {line}' for line in failure.tail]
        place = f'rank {failure.rank} of {ranks}' + (f' on {where}' if self.cluster.rendezvous else '')
        return '\n'.join([*lines, f'{after}{place} (log: {failure.log}): {failure.cause}'])
