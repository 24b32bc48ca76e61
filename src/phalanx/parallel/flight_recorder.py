"""Explanation of a hang: torch's flight recorder of each rank, and the first collective in which ranks differ.

torch's own analysis (torch.distributed.flight_recorder) does not know the members of gloo's groups, and always takes the first
rank for the correct one; so only the records are torch's.
"""

import json
import os
import pickle
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as torch_dist
from torch._C import _distributed_c10d as c10d

from phalanx.system.disk import remove_own

RECORDS = 200  # last collectives that each rank keeps
REQUEST, ANSWER = 'request.{}', 'records.{}'  # files of a rank: a pipe whose opening asks for its records, and the records
ANY_SIZE = ('all_to_all', 'gather', 'scatter')  # collectives to which ranks may give tensors of different sizes
INTERNAL = (
    f'{Path(torch.__file__).parent}{os.sep}',
    f'{os.sep}typing_extensions.py',
    f'{Path(__file__).parent}{os.sep}dist.py',
)


class Call(NamedTuple):
    """A collective as one rank called it."""

    group: str  # its name, and the backend
    number: int  # in the group, from 1
    name: str
    sizes: list[list[int]]  # of the inputs
    where: str  # the line that called it
    when: int  # nanoseconds since 1970

    def __str__(self) -> str:
        return f'{self.name} of {self.sizes} at {self.where}'

    def differs(self, other: 'Call') -> bool:
        return self.name != other.name or (self.sizes != other.sizes and not self.name.endswith(ANY_SIZE))


def record_collectives() -> None:
    """Record collectives, unless the user has set the size of the record. Call before the first process group is created."""
    os.environ.setdefault('TORCH_FR_BUFFER_SIZE', str(RECORDS))


def answer_requests(folder: Path, rank: int) -> None:
    """Start a thread that writes the records of this rank whenever its pipe in `folder` is opened. Waiting costs nothing."""
    pipe = folder / REQUEST.format(rank)
    remove_own(pipe)  # of an earlier attempt, in the launcher's folder
    os.mkfifo(pipe)

    def answer() -> None:
        while True:
            with pipe.open('rb') as request:  # opens when the launcher does
                request.read()
            write_records(folder, rank)

    threading.Thread(target=answer, name='flight recorder', daemon=True).start()


def write_records(folder: Path, rank: int) -> None:
    """Write the records of this rank, for `read_records`."""
    file = folder / ANSWER.format(rank)
    part = file.with_name(f'{file.name}.{threading.get_ident()}')
    part.write_text(json.dumps(own_records()))
    part.rename(file)


def own_records() -> dict[str, Any]:
    """Records of this process: `groups`, ranks by name, and `calls`, fields of `Call`. Without point-to-point operations."""
    recorders = ('_dump_fr_trace', *(['_dump_nccl_trace'] if torch_dist.is_nccl_available() else []))  # of gloo; of NCCL
    is_absent = '_inductor' not in vars(torch)
    if is_absent:  # to translate line numbers of compiled code, torch would import its compiler here, for seconds
        vars(torch)['_inductor'] = None
    dumps = [pickle.loads(getattr(c10d, recorder)()) for recorder in recorders]  # noqa: S301 - made by this process
    if is_absent:
        del vars(torch)['_inductor']
    world = torch_dist.distributed_c10d._world
    groups = {name: sorted(world.pg_group_ranks[group]) for group, name in world.pg_names.items()}
    calls = [
        Call(
            f'{entry["process_group"][0]} {entry["profiling_name"].partition(":")[0]}',
            entry['collective_seq_id'],
            entry['profiling_name'],
            entry['input_sizes'],
            _call_site(entry.get('frames', ())),
            entry['time_created_ns'],
        )
        for dump in dumps
        for entry in dump['entries']
        if not entry['is_p2p']
    ]
    return {'groups': groups, 'calls': calls}


def _call_site(frames: Iterable[Mapping[str, Any]]) -> str:
    """Innermost line outside of torch and of our own wrappers."""
    for frame in frames:
        if not any(part in frame['filename'] for part in INTERNAL):
            return f'{frame["filename"]}:{frame["line"]} ({frame["name"]})'
    return 'an unknown line'


def request_records(folder: Path, ranks: Iterable[int]) -> None:
    """Ask ranks for their records; those that cannot answer do not hold up the caller."""
    for rank in ranks:
        try:
            os.close(os.open(folder / REQUEST.format(rank), os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # its process has ended, or has no group
            continue


def read_records(folder: Path, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Records of the ranks that have answered."""
    files = {rank: folder / ANSWER.format(rank) for rank in ranks}
    return {rank: json.loads(file.read_text()) for rank, file in files.items() if file.is_file()}


def explain(records: Mapping[int, Mapping[str, Any]]) -> str:
    """Sentence about the first collective that ranks do not share, from the records by rank; '' if there is none.

    The ranks in the minority are named: fewest first, and of these the earliest call.
    """
    calls = {rank: [Call(*call) for call in record['calls']] for rank, record in records.items()}
    differences = []
    for group in sorted({call.group for own in calls.values() for call in own}):
        members = next(record['groups'][name] for record in records.values() if (name := group.split()[0]) in record['groups'])
        own = {rank: {call.number: call for call in calls[rank] if call.group == group} for rank in members if rank in calls}
        differences += _differences(group, own)
    return min(differences, default=(0, 0, ''))[2]


def describe_last_calls(records: Mapping[int, Mapping[str, Any]]) -> str:
    """Last collective of each rank; '' without any."""
    last = {
        rank: max((Call(*call) for call in record['calls']), key=lambda call: call.when, default=None)
        for rank, record in records.items()
    }
    return '; '.join(
        f'rank {rank} last called {call}, number {call.number} of group {call.group}' for rank, call in last.items() if call
    )


def _differences(group: str, calls: Mapping[int, Mapping[int, Call]]) -> list[tuple[int, int, str]]:
    """First difference of a group, if any: how many ranks deviate, when (ns), and the sentence. `calls`: by rank and number."""
    begin = max((min(own) for own in calls.values() if own), default=0)  # older calls are no longer recorded by every rank
    end = max((max(own) for own in calls.values() if own), default=0)
    for number in range(begin, end + 1):
        made = {rank: own[number] for rank, own in calls.items() if number in own}
        missing = [rank for rank in calls if rank not in made]
        kinds = [[rank for rank in made if not made[rank].differs(first)] for first in made.values()]
        most = max(kinds, key=len)
        call, others = made[most[0]], [rank for rank in made if rank not in most]
        place = f'collective number {number} of group {group}'
        when = min(call.when for call in made.values())
        if others:
            theirs = f'{_name(others)} called {made[others[0]]}, but {_name(most)} {call}'
            return [(len(others), when, f'in {place}, {theirs}')]
        if missing:
            last = max(calls[missing[0]].values(), key=lambda own: own.number, default=None)
            before = f'; its last in this group was number {last.number}, {last}' if last else ''
            return [(len(missing), when, f'{_name(missing)} did not take part in {place}, {call}{before}')]
    return []


def _name(ranks: list[int]) -> str:
    return f'rank{"s" if len(ranks) > 1 else ""} {", ".join(map(str, ranks))}'
