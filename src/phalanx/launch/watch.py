"""Watches an attempt from outside the ranks: machines that die, ranks that hang, machines that want to join.

torch's agent knows the ranks of its own machine only. What happens on another it learns when their connections break, which
can take half an hour (pytorch#111646). So each launcher writes a pulse to the store twice a second, reads those of the others,
and ends its own ranks when the attempt cannot go on, whatever they are doing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from phalanx.heartbeat import Beat, read_beats
from phalanx.launch.meeting import POLL, Card, Meeting, MeetingLostError, Members
from phalanx.launch.preflight import compare
from phalanx.stops import STACKS

PULSE = 0.5  # seconds between two pulses
LOST = 6  # seconds without a pulse after which a machine counts as lost
GRACE = 45  # seconds that ranks have to save when they are asked to stop
Verdict = dict[str, Any]  # why an attempt ends before its ranks are done: kind, cause, lines


class Watch(threading.Thread):
    """One attempt, watched until `stop`. `verdict` is why it had to end, None when it need not.

    `folder` holds the heartbeats of this machine's ranks; `members` and `meeting` are None on a machine alone.
    """

    def __init__(
        self,
        folder: Path,
        ranks: range,
        hang_timeout: float,
        say: Callable[[str], None],
        meeting: Meeting | None = None,
        members: Members | None = None,
    ) -> None:
        super().__init__(name='watch', daemon=True)
        self.folder, self.ranks, self.hang_timeout, self.say = folder, ranks, hang_timeout, say
        self.meeting, self.members = meeting, members
        self.verdict: Verdict | None = None
        self.over = threading.Event()
        self.seen: dict[int, tuple[Any, float]] = {}  # machine -> its last pulse, and when it changed

    def run(self) -> None:
        beaten = 0
        while not self.over.wait(PULSE) and self.verdict is None:
            beaten += 1
            beats = read_beats(self.folder)
            try:
                if self.meeting is not None:
                    self.exchange(beaten, beats)
                if self.verdict is None:
                    self.look_for_hang(beats)
            except MeetingLostError as error:
                self.verdict = {'kind': 'lost', 'number': 0, 'cause': str(error)}
        if self.verdict is not None and not self.over.is_set():
            self.end_ranks()

    def stop(self) -> None:
        self.over.set()

    def exchange(self, beaten: int, beats: dict[int, Beat]) -> None:
        """Writes this machine's pulse, reads the others', and takes over what one of them decided."""
        assert self.meeting is not None
        assert self.members is not None
        members, count, now = self.members, len(self.members.cards), time.monotonic()
        self.meeting.put(members.key('pulse', self.meeting.number), [beaten, {r: list(b) for r, b in beats.items()}])
        self.verdict, *told = self.meeting.look_at([members.verdict, *members.keys('pulse'), *members.keys('ended')])
        if self.verdict is not None:
            return
        for (number, _), pulse, ended in zip(members.cards, told[:count], told[count:], strict=True):
            if number not in self.seen or pulse != self.seen[number][0]:
                self.seen[number] = (pulse, now)
            elif now - self.seen[number][1] > LOST and ended is None:
                name = members.name(number)
                self.decide(
                    {'kind': 'lost', 'number': number, 'cause': f'{name} is lost: nothing was heard of it for {LOST} s'}
                )
                return
        if self.meeting.server is not None and (new := self.meeting.newcomers(members, self.unfit)):
            self.decide({'kind': 'newcomer', 'cause': f'{len(new)} more machine{"s" if len(new) > 1 else ""} joined'})

    def unfit(self, card: Card) -> str:
        """Why a machine cannot join the run; '' when it can."""
        assert self.members is not None
        findings = compare([self.members.cards[0][1], card])
        return '; '.join(finding.text for finding in findings if finding.level == 'error')

    def decide(self, verdict: Verdict) -> None:
        """Ends the attempt, here and on all other machines; the first who decides says why."""
        if self.meeting is not None and self.members is not None:
            verdict = self.meeting.put_first(self.members.verdict, verdict)
        self.verdict = verdict

    def look_for_hang(self, beats: dict[int, Beat]) -> None:
        """Ranks that have all been standing still: the one that is furthest behind is to blame."""
        if not beats or any(beat.age < self.hang_timeout for beat in beats.values()):
            return
        everybody = dict(beats)
        for pulse, _ in self.seen.values():
            everybody |= {int(rank): Beat(*beat) for rank, beat in (pulse[1] if pulse else {}).items()}
        rank = min(everybody, key=lambda rank: (everybody[rank].step, not _is_stopped(everybody[rank].pid), rank))
        beat = everybody[rank]
        stopped = ' (its process is stopped)' if rank in beats and _is_stopped(beat.pid) else ''
        where = ', '.join(f'rank {r}: step {b.step}, {b.doing}' for r, b in sorted(everybody.items()))
        self.decide(
            {
                'kind': 'hang',
                'cause': f'no rank has gone on for {self.hang_timeout:.0f} s; rank {rank} is behind, at step {beat.step}, '
                f'{beat.doing}{stopped} [{where}]',
            }
        )

    def end_ranks(self) -> None:
        """Ends the ranks of this machine: with time to save when they can, at once when they cannot."""
        assert self.verdict is not None
        kind = self.verdict['kind']
        children = psutil.Process().children()
        if kind == 'hang':
            self.show_stacks(children)
        gentle = kind in ('newcomer', 'stopped')
        for child in children:
            _send(child, signal.SIGTERM if gentle else signal.SIGKILL)
        end = time.monotonic() + (GRACE if gentle else 3)
        while (alive := [child for child in children if _is_alive(child)]) and time.monotonic() < end:
            time.sleep(POLL)
        for child in alive:
            _send(child, signal.SIGKILL)
        # The agent in the main thread sees its ranks gone and returns. If it sits in a wait of its own, the process ends here.
        if not self.over.wait(8):
            self.say(str(self.verdict['cause']))
            os._exit(1)

    def show_stacks(self, children: list[psutil.Process]) -> None:
        """Asks every rank here where it is; a stopped process cannot answer."""
        for child in children:
            _send(child, STACKS)
        time.sleep(1)
        for rank in self.ranks:
            file = self.folder / f'stack.{rank}'
            text = file.read_text(errors='replace').strip() if file.is_file() else ''
            for line in (text or 'no answer: its process is stopped, or waits in the kernel').splitlines():
                self.say(f'[rank {rank}] {line}')


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _is_alive(process: psutil.Process) -> bool:
    """Whether it still runs. Only looks: who waits for a child takes its exit status away from the agent."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
