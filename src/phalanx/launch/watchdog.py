"""Watches an attempt from outside the ranks: nodes that die, ranks that hang, nodes that want to join.

torch's agent knows the ranks of its own node only. It notices what happens on another when their connections break, which can
take half an hour (pytorch#111646). So each launcher writes a heartbeat to the store twice a second, reads those of the others,
and ends its own ranks when the attempt cannot continue, whatever they are doing.
"""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from phalanx.launch.preflight import compare_facts
from phalanx.launch.rendezvous import POLL, Members, NodeInfo, Rendezvous, RendezvousLostError, print_line
from phalanx.parallel.heartbeat import Beat, read_beats
from phalanx.system.stops import STACKS

HEARTBEAT = 0.5  # seconds between two heartbeats
STALL = 2 * HEARTBEAT  # seconds that a round of this thread may count: if it takes longer, this launcher itself was held up
GRACE = 45  # seconds that ranks have to save when they are asked to stop
OWN_END = 5  # seconds that ranks have to report an error of their own when others have lost the connection to them
EXITING = 0x4  # PF_EXITING, a flag of Linux in /proc/PID/stat
Verdict = dict[str, Any]  # why an attempt ends before its ranks are done: kind, cause, lines


class Watchdog(threading.Thread):
    """One attempt, watched until it is `over`. `verdict` is why it had to end, None when it need not.

    `folder` holds the heartbeats of this node's ranks; `members` and `rendezvous` are None on a node alone.
    """

    def __init__(
        self,
        folder: Path,
        ranks: range,
        hang_timeout: float,
        rendezvous: Rendezvous | None = None,
        members: Members | None = None,
    ) -> None:
        super().__init__(name='watchdog', daemon=True)
        self.folder, self.ranks, self.hang_timeout = folder, ranks, hang_timeout
        self.rendezvous, self.members = rendezvous, members
        self.verdict: Verdict | None = None
        self.over = threading.Event()
        self.seen: dict[int, tuple[Any, float]] = {}  # node -> its last heartbeat, and for how many seconds it is the same
        self.beaten = 0
        self.last = time.monotonic()  # when the heartbeats of others were read
        self.killed: set[int] = set()  # ranks that were running until this thread ended them
        self.reported = ''  # the last error of this thread itself

    def run(self) -> None:
        while not self.over.wait(HEARTBEAT) and self.verdict is None:
            try:
                beats = read_beats(self.folder)
                if self.rendezvous is not None:
                    self.exchange(beats)
                if self.verdict is None:
                    self.look_for_hang(beats)
            except RendezvousLostError as error:
                self.verdict = {'kind': 'lost', 'number': 0, 'cause': str(error)}
            except Exception as error:  # noqa: BLE001 - without this thread the other nodes would take this one for lost
                self.report(error)
        if self.verdict is not None and not self.over.is_set():
            self.end_ranks()

    def report(self, error: Exception) -> None:
        """Says what went wrong in this thread, once; the next round may do better."""
        text = f'{type(error).__name__}: {error}'
        if text != self.reported:
            self.reported = text
            print_line(f'warning: the watchdog of this node met an error and goes on: {text}')

    def exchange(self, beats: dict[int, Beat]) -> None:
        """Writes this node's heartbeat, reads the others', and takes over what one of them decided."""
        assert self.rendezvous is not None and self.members is not None
        self.beat(beats)
        self.verdict, silent = self.listen()
        if self.verdict is not None:
            return
        limit = self.rendezvous.heartbeat_timeout
        for number, seconds in silent.items():
            if seconds > limit:
                cause = f'{self.members.name(number)} is lost: no heartbeat from it for {limit:g} s'
                self.decide({'kind': 'lost', 'number': number, 'cause': cause})
                return
        if self.rendezvous.server is not None and (new := self.rendezvous.newcomers(self.members, self.unfit)):
            self.decide({'kind': 'newcomer', 'cause': f'{len(new)} more node{"s" if len(new) > 1 else ""} joined'})

    def listen(self) -> tuple[Verdict | None, dict[int, float]]:
        """The verdict, if there is one, and for how many seconds each node whose ranks have not ended has been silent."""
        assert self.rendezvous is not None and self.members is not None
        members, count, now = self.members, len(self.members.nodes), time.monotonic()
        verdict, *answers = self.rendezvous.get_all([members.verdict, *members.keys('heartbeat'), *members.keys('ended')])
        passed, self.last = min(now - self.last, STALL), now
        silent = {}
        for number, heartbeat, ended in zip(members.numbers, answers[:count], answers[count:], strict=True):
            before, seconds = self.seen.get(number, ('never read', 0.0))
            self.seen[number] = (heartbeat, 0.0 if heartbeat != before else seconds + passed)
            if ended is None:
                silent[number] = self.seen[number][1]
        return verdict, silent

    def beat(self, beats: dict[int, Beat]) -> None:
        """Writes this node's heartbeat and the progress of its ranks."""
        if self.rendezvous is not None and self.members is not None:
            self.beaten += 1
            self.rendezvous.put(self.members.key('heartbeat', self.rendezvous.number), [self.beaten, beats])

    def unfit(self, info: NodeInfo) -> str:
        """Why a node cannot join the run; '' when it can."""
        assert self.members is not None
        findings = compare_facts([self.members.nodes[0][1], info])
        return '; '.join(finding.text for finding in findings if finding.level == 'error')

    def decide(self, verdict: Verdict) -> None:
        """Ends the attempt, here and on all other nodes; the first who decides says why."""
        if self.rendezvous is not None and self.members is not None:
            verdict = self.rendezvous.put_if_unset(self.members.verdict, verdict)
        self.verdict = verdict

    def look_for_hang(self, beats: dict[int, Beat]) -> None:
        """All ranks have made no progress: the one furthest behind is to blame."""
        if not beats or any(beat.age < self.hang_timeout for beat in beats.values()):
            return
        everybody = dict(beats)
        for heartbeat, _ in self.seen.values():
            everybody |= {int(rank): Beat(*beat) for rank, beat in (heartbeat[1] if heartbeat else {}).items()}
        rank = min(everybody, key=lambda rank: (everybody[rank].step, not _is_stopped(everybody[rank].pid), rank))
        beat = everybody[rank]
        stopped = ' (its process is stopped)' if rank in beats and _is_stopped(beat.pid) else ''
        where = ', '.join(f'rank {r}: step {b.step}, {b.doing}' for r, b in sorted(everybody.items()))
        behind = f'rank {rank} is furthest behind, at step {beat.step}, {beat.doing}{stopped}'
        self.decide({'kind': 'hang', 'cause': f'no progress for {self.hang_timeout:.0f} s; {behind} [{where}]'})

    def end_ranks(self) -> None:
        """Ends the ranks of this node: with time to save when they can, at once when they cannot."""
        assert self.verdict is not None
        kind = self.verdict['kind']
        children = psutil.Process().children()
        if kind == 'hang':
            self.show_stacks(children)
        if kind in ('newcomer', 'stopped'):
            for child in children:
                _send(child, signal.SIGTERM)
            self.await_ends(children, GRACE)
        elif kind == 'failed' and self.verdict['is_consequence']:  # the cause may be here, and still be on its way
            self.await_ends(children, OWN_END)
        for child in children:
            if _is_alive(child):
                self.killed.add(child.pid)
                _send(child, signal.SIGKILL)
        self.await_ends(children, 3)
        # The agent in the main thread sees its ranks gone and returns. If it sits in a wait of its own, the process ends here.
        if not self.over.wait(8):
            print_line(str(self.verdict['cause']))
            os._exit(1)

    def await_ends(self, processes: list[psutil.Process], seconds: float) -> None:
        """Waits for them, with heartbeats: ranks that save may take longer than the others wait for one."""
        end = time.monotonic() + seconds
        while any(_is_alive(process) for process in processes) and time.monotonic() < end:
            time.sleep(POLL)
            with contextlib.suppress(RendezvousLostError):
                self.beat({})

    def show_stacks(self, children: list[psutil.Process]) -> None:
        """Asks every rank here where it is; a stopped process cannot answer."""
        for child in children:
            _send(child, STACKS)
        time.sleep(1)
        for rank in self.ranks:
            file = self.folder / f'stack.{rank}'
            text = file.read_text(errors='replace').strip() if file.is_file() else ''
            for line in (text or 'no answer: its process is stopped, or waits in the kernel').splitlines():
                print_line(f'[rank {rank}] {line}')


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def _is_alive(process: psutil.Process) -> bool:
    """Whether it still runs. Only looks: who waits for a child takes its exit status away from the agent.

    A process that the kernel is ending, which takes long where memory is short, does not run any more.
    """
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        stat = Path(f'/proc/{process.pid}/stat')
        flags = int(stat.read_text().rpartition(')')[2].split()[6]) if stat.is_file() else 0
    except (psutil.Error, OSError):
        return False
    return not flags & EXITING


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
