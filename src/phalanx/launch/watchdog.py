"""Watchdog of an attempt, outside the ranks: detects dead nodes, hanging ranks and new nodes.

torch's agent knows only the ranks of its own node. It notices a failure on another node when connections break, which can take
half an hour (pytorch#111646). So each launcher writes a heartbeat to the store twice a second; the first node reads all of
them, the others its own; and each ends its ranks when the attempt cannot continue, whatever they are doing.
"""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from phalanx.launch.members import Members, NodeInfo
from phalanx.launch.preflight import compare_facts
from phalanx.launch.rendezvous import POLL, Rendezvous, RendezvousLostError, print_line
from phalanx.parallel.flight_recorder import explain, read_records, request_records
from phalanx.parallel.heartbeat import Beat, read_beats
from phalanx.system.stops import STACKS

HEARTBEAT = 0.5  # seconds between two heartbeats
STALL = 2 * HEARTBEAT  # maximum seconds that one round counts: if it took longer, this launcher itself was paused
GRACE = 45  # seconds that ranks have to save after a stop
OWN_END = 5  # seconds that ranks have to report their own error after others lost the connection
RECORDS = 3  # seconds to wait for the records of collectives of all ranks
MOST = 32  # ranks of a hang to show, those furthest behind
EXITING = 0x4  # PF_EXITING, a flag of Linux in /proc/PID/stat
Verdict = dict[str, Any]  # reason to end an attempt early: kind, cause, details


class Watchdog(threading.Thread):
    """Thread that watches one attempt until `over` is set. `verdict`: reason to end it early, or None.

    `folder` holds the heartbeats of the ranks of this node; `members` and `rendezvous` are None for a single node.
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
        self.explanation = ''  # of a hang: the collective in which ranks differ
        self.over = threading.Event()
        self.seen: dict[int, tuple[Any, float]] = {}  # node -> its last heartbeat, and its age in seconds
        self.beats_sent = 0
        self.last = self.woke = time.monotonic()  # time of the last reading of heartbeats, of all nodes and of this one
        self.paused: dict[int, tuple[float, float]] = {}  # rank -> time of its last heartbeat, and seconds paused since
        self.killed: set[int] = set()  # pids of ranks that this thread has killed
        self.reported = ''  # last error of this thread

    def run(self) -> None:
        while not self.over.wait(HEARTBEAT) and self.verdict is None:
            try:
                beats = self.read()
                if self.rendezvous is not None:
                    self.exchange(beats)
                if self.verdict is None:
                    self.detect_hang(beats)
            except RendezvousLostError as error:
                self.verdict = {'kind': 'lost', 'number': 0, 'cause': str(error)}
            except Exception as error:  # noqa: BLE001 - if this thread ended, other nodes would count this node as lost
                self.report(error)
        if self.verdict is not None and not self.over.is_set():
            self.end_ranks()

    def read(self) -> dict[int, Beat]:
        """Heartbeats of the ranks of this node. Their ages leave out pauses of this launcher: its ranks were paused, too.

        Ctrl-Z, `scontrol suspend` and gang scheduling stop all processes of a job, for longer than a hang is tolerated.
        """
        now, beats = time.monotonic(), read_beats(self.folder)
        pause, self.woke = max(0.0, now - self.woke - STALL), now
        for rank, beat in beats.items():
            when, before = self.paused.get(rank, (beat.when, 0.0))
            seconds = min(pause + (before if beat.when == when else 0.0), beat.age)
            self.paused[rank] = beat.when, seconds
            beats[rank] = beat._replace(age=beat.age - seconds)
        return beats

    def report(self, error: Exception) -> None:
        """Print an error of this thread, once; the next round may succeed."""
        text = f'{type(error).__name__}: {error}'
        if text != self.reported:
            self.reported = text
            print_line(f'warning: the watchdog of this node met an error and goes on: {text}')

    def exchange(self, beats: dict[int, Beat]) -> None:
        """Write the heartbeat of this node, read the others', and adopt a verdict of another node."""
        assert self.rendezvous is not None and self.members is not None
        self.beat(beats)
        # The first node listens to all and decides for them, the others to it: messages and bytes grow with the nodes.
        self.verdict, silent = self.listen()
        if self.verdict is None:
            self.detect_loss(silent)
        if self.verdict is not None:
            return
        if self.rendezvous.server is not None and (new := self.rendezvous.find_newcomers(self.members, self.find_misfits)):
            self.decide({'kind': 'newcomer', 'cause': f'{len(new)} more node{"s" if len(new) > 1 else ""} joined'})

    @property
    def is_first(self) -> bool:
        """True on the first node, which has the store, and on a node alone."""
        return self.rendezvous is None or self.rendezvous.server is not None

    def listen(self) -> tuple[Verdict | None, dict[int, float]]:
        """Common verdict, if any, and seconds of silence of each node that this one listens to and whose ranks go on."""
        assert self.rendezvous is not None and self.members is not None
        numbers = self.members.numbers
        count, now = len(numbers), time.monotonic()
        keys = [self.members.key(what, number) for what in ('heartbeat', 'ended') for number in numbers]
        verdict, *answers = self.rendezvous.get_all([self.members.verdict, *keys])
        passed, self.last = min(now - self.last, STALL), now
        silent = {}
        for number, heartbeat, ended in zip(numbers, answers[:count], answers[count:], strict=True):
            before, seconds = self.seen.get(number, ('never read', 0.0))
            self.seen[number] = (heartbeat, 0.0 if heartbeat != before else seconds + passed)
            if ended is None:
                silent[number] = self.seen[number][1]
        return verdict, silent

    def detect_loss(self, silent: dict[int, float]) -> None:
        """Decide for the loss of a node that has been silent for too long. `silent`: seconds by number of the node."""
        assert self.rendezvous is not None and self.members is not None
        limit = self.rendezvous.heartbeat_timeout
        if lost := [number for number, seconds in silent.items() if seconds > limit]:
            cause = f'{self.members.name(lost[0])} is lost: no heartbeat from it for {limit:g} s'
            self.decide({'kind': 'lost', 'number': lost[0], 'cause': cause})

    def beat(self, beats: dict[int, Beat]) -> None:
        """Write the heartbeat of this node, with the progress of its ranks."""
        if self.rendezvous is not None and self.members is not None:
            self.beats_sent += 1
            self.rendezvous.put(self.members.key('heartbeat', self.rendezvous.number), [self.beats_sent, beats])

    def find_misfits(self, info: NodeInfo) -> str:
        """Reasons why a node cannot join the run; '' if it can."""
        assert self.members is not None
        findings = compare_facts([self.members.nodes[0][1], info])
        return '; '.join(finding.text for finding in findings if finding.level == 'error')

    def decide(self, verdict: Verdict) -> None:
        """End the attempt on all nodes; the first verdict wins."""
        if self.rendezvous is not None and self.members is not None:
            verdict = self.rendezvous.put_if_unset(self.members.verdict, verdict)
        self.verdict = verdict

    def detect_hang(self, beats: dict[int, Beat]) -> None:
        """On the first node: decide for a hang if no rank of a node has made progress."""
        if not self.is_first:
            return
        published = [heartbeat[1] for heartbeat, _ in self.seen.values() if heartbeat]
        of_nodes = [{int(rank): Beat(*beat) for rank, beat in of_node.items()} for of_node in published]
        of_nodes.append(beats)  # its own, which are the newest
        if any(is_hanging(of_node, self.hang_timeout) for of_node in of_nodes):
            all_beats = {rank: beat for of_node in of_nodes for rank, beat in of_node.items()}
            self.decide({'kind': 'hang', 'cause': describe_hang(all_beats, self.hang_timeout)})

    def end_ranks(self) -> None:
        """End the ranks of this node: with time to save after a stop, else at once."""
        assert self.verdict is not None
        kind = self.verdict['kind']
        children = psutil.Process().children()
        if kind == 'hang':
            request_records(self.folder, self.ranks)
            self.show_stacks(children)
            self.explain_hang()
        if kind in ('newcomer', 'stopped'):
            for child in children:
                _send(child, signal.SIGTERM)
            self.await_ends(children, GRACE)
        elif kind == 'failed' and self.verdict['is_consequence']:  # the cause may be here, and not reported yet
            self.await_ends(children, OWN_END)
        for child in children:
            if _is_alive(child):
                self.killed.add(child.pid)
                _send(child, signal.SIGKILL)
        self.await_ends(children, 3)
        # The agent in the main thread notices the end of its ranks and returns. If it is blocked elsewhere, end the process.
        if not self.over.wait(8):
            print_line(str(self.verdict['cause']))
            os._exit(1)

    def await_ends(self, processes: list[psutil.Process], seconds: float) -> None:
        """Wait for processes while sending heartbeats: saving may take longer than the heartbeat timeout."""
        end = time.monotonic() + seconds
        while any(_is_alive(process) for process in processes) and time.monotonic() < end:
            time.sleep(POLL)
            with contextlib.suppress(RendezvousLostError):
                self.beat({})

    def explain_hang(self) -> None:
        """Explain a hang from the records of collectives of all ranks, if they come in time: the first node merges them."""
        try:
            end = time.monotonic() + RECORDS
            while len(records := read_records(self.folder, self.ranks)) < len(self.ranks) and time.monotonic() < end:
                time.sleep(POLL)
            if self.rendezvous is None or self.members is None:
                self.explanation = explain(records)
                return
            key = self.members.common('explanation')
            self.rendezvous.put(self.members.key('records', self.rendezvous.number), records)
            if self.is_first:
                while None in (answers := self.rendezvous.get_all(self.members.keys('records'))) and time.monotonic() < end:
                    time.sleep(POLL)
                found = {int(rank): record for answer in answers if answer for rank, record in answer.items()}
                self.explanation = explain(found)
                self.rendezvous.put(key, self.explanation)
                return
            while (explanation := self.rendezvous.get(key)) is None and time.monotonic() < end + RECORDS:
                time.sleep(POLL)
            self.explanation = explanation or ''
        except (RendezvousLostError, ValueError, LookupError) as error:  # records of another torch, for example
            self.report(error)

    def show_stacks(self, children: list[psutil.Process]) -> None:
        """Print the stacks of every rank here; a stopped process cannot answer."""
        for child in children:
            _send(child, STACKS)
        time.sleep(1)
        for rank in self.ranks:
            file = self.folder / f'stack.{rank}'
            text = file.read_text(errors='replace').strip() if file.is_file() else ''
            for line in (text or 'no answer: its process is stopped, or waits in the kernel').splitlines():
                print_line(f'[rank {rank}] {line}')


def is_hanging(beats: dict[int, Beat], timeout: float) -> bool:
    """True if no rank has made progress for `timeout` seconds. Ranks that have yet to send a heartbeat do not count."""
    return bool(beats) and all(beat.age >= timeout for beat in beats.values())


def describe_hang(beats: dict[int, Beat], timeout: float) -> str:
    """Sentence about a hang that names the rank furthest behind. `beats`: last heartbeat by rank, not empty."""
    rank = min(beats, key=lambda rank: (beats[rank].step, not beats[rank].stopped, rank))
    beat = beats[rank]
    stopped = ' (its process is stopped)' if beat.stopped else ''
    behind = sorted(beats, key=lambda rank: (beats[rank].step, rank))[:MOST]
    where = ', '.join(f'rank {r}: step {beats[r].step}, {beats[r].doing}' for r in sorted(behind))
    where += f', and {len(beats) - MOST} more' if len(beats) > MOST else ''
    together = not stopped and len({(beat.step, beat.doing) for beat in beats.values()}) == 1
    who = 'all ranks are' if together else f'rank {rank} is furthest behind,'
    return f'no progress for {timeout:.0f} s; {who} at step {beat.step}, {beat.doing}{stopped} [{where}]'


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def _is_alive(process: psutil.Process) -> bool:
    """True if a process is running; reads /proc only, because waiting for a child would take its exit status from the agent.

    A process that the kernel is ending counts as ended: that can take long if memory is short.
    """
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        stat = Path(f'/proc/{process.pid}/stat')
        flags = int(stat.read_text().rpartition(')')[2].split()[6]) if stat.is_file() else 0
    except (psutil.Error, OSError):
        return False
    return not flags & EXITING
