"""Kills a small real training at random moments, and starts it again until it is done.

Where each start has as many ranks, the run is compared with an undisturbed one, bit by bit. Where each start has another number
of ranks, its steps must continue one another, and see each sample of an epoch once.

`PYTHONPATH=tests python -m faults.soak --kills 200 --seed 0`, or `make soak`. Exit status 1 when anything was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from math import isclose
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

from faults.files import write_sparse_objects
from faults.started import Started, command_of, living_in
from nodes.conftest import Node, bridged
from running import TINY, losses, records

STEPS = 16
FAMILIES = {  # one after the other
    'segmentation': (*TINY, 'data.size=[32,64]', 'data.train_scenes=24', 'data.eval_scenes=4'),
    'recognition': ('crnn_digits', '--set', 'data.train_lines=24', 'data.eval_lines=4', 'evaluate.batch_size=1'),
    'text detection': (
        'db_pages',
        '--set',
        'data.page_size=[96,64]',
        'data.train_pages=24',
        'data.eval_pages=4',
        'data.lines=[1,2]',
    ),
    'table': (
        *('slanet_rendered', '--set', 'data.train_tables=24', 'data.eval_tables=4', 'image_size=64', 'max_length=60'),
        *('model.backbone.scale=0.5', 'model.channels=24', 'model.hidden=32'),
    ),
    'detection': (  # with images, and whole batches, without objects
        *('ppyoloe_digits', '--set', 'data={name: coco, root: SPARSE, train: train.json, eval: eval.json}'),
        *('data.train_images=train', 'data.eval_images=eval', 'data.empty_images=true'),
    ),
}
SIZE, EPOCHS = 24, 2.5  # samples, and how often runs that count epochs see them: 60 in all, which 1, 2 and 3 ranks divide
SETTINGS = (
    *('train.workers=1', 'ema={decay: 0.9}', 'checkpoint.every=2', 'evaluate.every=6', 'report.every=1', 'report.pictures=0'),
    *('device=cpu', '--max_restart', '5'),
)
CHANGING = (
    'norm_sync=global',
    'scaling.rule=none',
    'schedule={name: polynomial}',
    'schedule.power=1',
    'schedule.warmup_steps=0',
)
PER_RANK = ('train.global_batch_size=null', 'train.batch_size_per_rank=2')
IN_STEPS, IN_EPOCHS = ('train.epochs=null', f'train.steps={STEPS}'), ('train.steps=null', f'train.epochs={EPOCHS}')
WAYS: dict[str, tuple[str, ...]] = {  # to count and to share; as there are not as many as families, all meet all in time
    'two ranks throughout': ('train.batch_size_per_rank=null', 'train.global_batch_size=4', *IN_STEPS),
    'other ranks, a global batch, epochs': (
        'train.batch_size_per_rank=null',
        'train.global_batch_size=6',
        *IN_EPOCHS,
        *CHANGING,
    ),
    'other ranks, a batch per rank, epochs': (*PER_RANK, *IN_EPOCHS, *CHANGING),
    'other ranks, a batch per rank, steps': (*PER_RANK, *IN_STEPS, *CHANGING),
}
FIXED = next(iter(WAYS))
CAUSES = ('SIGKILL', 'killed')  # one of them is in the last line of a command that failed
LOST = ('lost', 'the first node', 'has not joined')  # or, on another node than that of a launcher that was killed, one of these
BOUND = 600  # seconds in which a run must go on, or end, after a fault: for nodes that do much else; it takes some 20


class Life:
    """One start of the command, on this node or on each of `nodes`, until it has ended everywhere."""

    def __init__(self, folder: Path, family: str, way: str, ranks: int, nodes: Sequence[Node]) -> None:
        """`ranks` are those of the only node; on several, each has one."""
        self.run, self.begun = folder / 'run', time.time()
        recipe = [word.replace('SPARSE', str(folder / 'sparse')) for word in FAMILIES[family]]
        words = ('train', *recipe, *WAYS[way], *SETTINGS, '--save_dir', str(self.run))
        temporary = str(folder / 'tmp')
        if nodes:
            addresses = ','.join(node.address for node in nodes)
            words = (*words, '--ips', addresses, '--heartbeat_timeout', '6', '--join_timeout', '90')
            self.starts = [
                Started(node.folder, *words, within=('ip', 'netns', 'exec', node.namespace), piped=True, TMPDIR=temporary)
                for node in nodes
            ]
        else:
            self.starts = [Started(folder, *words, '--nproc_per_node', str(ranks), piped=True, TMPDIR=temporary)]

    @property
    def is_over(self) -> bool:
        return all(start.process.poll() is not None for start in self.starts)

    def launchers(self) -> list[psutil.Process]:
        return [start.process for start in self.starts if start.process.poll() is None]

    def ranks(self) -> list[psutil.Process]:
        return [rank for start in self.starts for rank in start.ranks()]

    def workers(self) -> list[psutil.Process]:
        return [worker for start in self.starts for worker in start.workers()]

    def until(self, condition: Callable[[], object], seconds: float) -> bool:
        """True if `condition` came true, or the command ended everywhere, within `seconds`."""
        end = time.monotonic() + seconds
        while not condition() and not self.is_over:
            for start in self.starts:
                start.descendants()
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def has_gone_on_since(self, moment: float) -> bool:
        file = self.run / 'metrics.jsonl'
        return file.is_file() and file.stat().st_size > 0 and file.stat().st_mtime > moment  # a start begins it empty

    def last_words(self) -> str:
        return ' / '.join(start.last_words() for start in self.starts)


def kill_rank(life: Life, chance: random.Random) -> bool:
    """True if there was a rank to kill. SIGKILL, as from the kernel when memory runs out."""
    return _signal_one(life.ranks(), signal.SIGKILL, chance)


def kill_worker(life: Life, chance: random.Random) -> bool:
    return _signal_one(life.workers(), signal.SIGKILL, chance)


def kill_launcher(life: Life, chance: random.Random) -> bool:
    return _signal_one(life.launchers(), signal.SIGKILL, chance)


def terminate(life: Life, chance: random.Random) -> bool:
    """SIGTERM to a launcher, as a scheduler's warning: save, then leave."""
    return _signal_one(life.launchers(), signal.SIGTERM, chance)


def pause_rank(life: Life, chance: random.Random) -> bool:
    """SIGSTOP, and SIGCONT after a while: nothing may come of it but the time."""
    victims = life.ranks()
    if not victims:
        return False
    victim = chance.choice(victims)
    if not _signal_one([victim], signal.SIGSTOP, chance):
        return False
    time.sleep(chance.uniform(0.2, 2))
    return _signal_one([victim], signal.SIGCONT, chance)


def end_reader(life: Life, chance: random.Random) -> bool:
    """SIGKILL to what reads the output, as when a connection or a terminal goes: nothing may come of it."""
    readers = [start.reader for start in life.starts if start.reader is not None and start.reader.poll() is None]
    return _signal_one(readers, signal.SIGKILL, chance)


FAULTS: dict[str, tuple[float, Callable[[Life, random.Random], bool]]] = {  # how often, what
    'kill -9 of a rank': (0.35, kill_rank),
    'kill -9 of the launcher': (0.15, kill_launcher),
    'kill -9 of a loader worker': (0.25, kill_worker),
    'SIGTERM': (0.15, terminate),
    'SIGSTOP and SIGCONT of a rank': (0.1, pause_rank),
    'the end of the reader of the output': (0.1, end_reader),
}


class Soak:
    """Faults, counted, and everything that was not as it should be."""

    def __init__(self, folder: Path, kills: int, seed: int, nodes: Sequence[Node] = ()) -> None:
        self.folder, self.kills, self.chance, self.nodes = folder, kills, random.Random(seed), nodes
        self.tally: Counter[str] = Counter()
        self.usual: set[str] = set()  # torch keeps a cache among the temporary files
        self.wrong: list[str] = []
        self.runs = self.lives = self.in_training = 0
        write_sparse_objects(folder / 'sparse', SIZE, 4)

    def go(self) -> None:
        """Runs, each disturbed until it is done, until the faults are used up."""
        begun, runs = time.monotonic(), zip(cycle(FAMILIES), cycle([FIXED] if self.nodes else WAYS))
        while self.done() < self.kills:
            self.family, self.way = next(runs)
            if self.way == FIXED:
                self.undisturbed()
            self.runs += 1
            run = self.folder / 'run'
            shutil.rmtree(run, ignore_errors=True)
            while not (run / 'summary.json').is_file():
                known = len(self.wrong)
                self.life()
                count = f'{self.family}, {self.way}: {self.done()} faults, {self.lives} starts, {self.runs} runs'
                print(count, *self.wrong[known:], sep='\n  ', flush=True)
            if self.way == FIXED:
                self.compare(run)
            else:
                self.check_progress(run)
            hidden = [path for path in run.rglob('.*') if not path.name.startswith('.latest')]
            self.wrong += [f'left in the run folder: {path.relative_to(run)}' for path in hidden]
            print(self.summarise(time.monotonic() - begun), end='\n\n', flush=True)

    def done(self) -> int:
        return sum(self.tally.values())

    def undisturbed(self) -> None:
        """The run that those of this family are compared with, once."""
        if (self.folder / self.family).is_dir():
            return
        shutil.rmtree(self.folder / 'run', ignore_errors=True)
        life = Life(self.folder, self.family, self.way, 2, self.nodes)
        statuses = [start.process.wait() for start in life.starts]
        if any(statuses):
            sys.exit('the undisturbed run failed: ' + '\n'.join(start.output() for start in life.starts))
        (self.folder / 'run').rename(self.folder / self.family)
        self.usual |= {file.name for file in (self.folder / 'tmp').iterdir()}

    def life(self) -> None:
        """One start of the command, with faults until it ends or they are used up."""
        ranks = 2 if self.way == FIXED else self.chance.randint(1, 3)
        life, stopped_by_us = Life(self.folder, self.family, self.way, ranks, self.nodes), False
        before = moment = life.begun
        self.lives += 1
        while not life.is_over:
            if self.done() >= self.kills:
                life.until(lambda: False, BOUND)
                break
            if self.chance.random() < 0.6:  # in the middle of training; else as it comes: at the start, while it loads
                if not life.until(lambda since=moment: life.has_gone_on_since(since), BOUND):
                    self.wrong.append(f'nothing happened for {BOUND} s: {life.last_words()}')
                    break
                time.sleep(self.chance.expovariate(1))
            else:
                life.until(lambda: False, self.chance.uniform(0.1, 12))
            if life.is_over:
                break
            (name,) = self.chance.choices(list(FAULTS), [weight for weight, _ in FAULTS.values()])
            before, moment = moment, time.time()
            if not FAULTS[name][1](life, self.chance):
                continue
            self.tally[name] += 1
            self.in_training += life.has_gone_on_since(life.begun)
            stopped_by_us = stopped_by_us or name == 'SIGTERM'
            if name == 'SIGTERM' or name == 'kill -9 of the launcher':
                life.until(lambda: False, BOUND)
        self.end(life, stopped_by_us, before)

    def end(self, life: Life, stopped: bool, since: float) -> None:
        """Check what must hold after each end of the command. `since`: the time of the last fault but one."""
        if not life.is_over:
            self.wrong.append(f'did not end: {life.last_words()}')
            for process in life.launchers():
                process.kill()
        statuses = [int(start.process.wait()) for start in life.starts]
        right = [0, 1, -signal.SIGKILL, *((143, -signal.SIGTERM) if stopped else ())]
        if self.nodes:  # 2: the first node was ended before it listened, so on the others nothing was started
            right.append(2)
        for start, status in zip(life.starts, statuses, strict=True):
            if status not in right:
                self.wrong.append(f'exit status {status}: {start.last_words()}')
            if (
                status in (1, 2)
                and start.is_read()
                and not any(cause in start.last_words() for cause in (*CAUSES, *(LOST if self.nodes else ())))
            ):
                self.wrong.append(f'the first cause is not on the last line: {start.last_words()}')
        end = time.monotonic() + 120
        while (left := [each for start in life.starts for each in living_in(start.folder)]) and time.monotonic() < end:
            time.sleep(0.1)
        for process in left:
            self.wrong.append(f'left after exit status {statuses}: {command_of(process)}')
            process.kill()
        seen = {pid for start in life.starts for pid in start.seen}
        shared = [file.name for file in Path('/dev/shm').glob('*_*') if _number_in(file.name) in seen]
        self.wrong += [f'left in /dev/shm: {name}' for name in shared]
        temporary = [file.name for file in (self.folder / 'tmp').iterdir() if file.name not in self.usual]
        if -signal.SIGKILL in statuses:  # a launcher that is killed cannot clear up: its folder of heartbeats stays
            temporary = [name for name in temporary if not name.startswith('phalanx-')]
        self.wrong += [f'left in TMPDIR after exit status {statuses}: {name}' for name in temporary]
        shutil.rmtree(self.folder / 'tmp')
        (self.folder / 'tmp').mkdir()
        if 143 in statuses and life.has_gone_on_since(since):  # else the log still has steps that the fault before has cost
            self.check_nothing_lost(life)

    def check_nothing_lost(self, life: Life) -> None:
        """After a SIGTERM that was heeded the last step is on disk."""
        reached = max((line['step'] for line in records(self.folder / 'run')), default=0)
        saved = sorted(path.name for path in (self.folder / 'run' / 'checkpoints').glob('step_*'))
        if not saved or int(saved[-1][5:]) < reached:
            self.wrong.append(f'SIGTERM lost steps: step {reached} was logged, saved are {saved}: {life.last_words()}')

    def compare(self, run: Path) -> None:
        """The finished run with the undisturbed one, bit by bit: weights, averages, the losses of all steps, evaluations."""
        expected = self.folder / self.family
        names, others = ({file.name for file in (each / 'latest').glob('*.safetensors')} for each in (expected, run))
        if names != others:
            self.wrong.append(f'saved are {sorted(others)}, not {sorted(names)}')
        for name in names & others:
            found, right = load_file(run / 'latest' / name), load_file(expected / 'latest' / name)
            apart = [key for key, value in right.items() if not value.equal(found[key])]
            if apart:
                self.wrong.append(f'{name} differs in {len(apart)} of {len(right)} tensors')
        if losses(run) != losses(expected):
            self.wrong.append('the losses differ')
        if evaluations(run) != evaluations(expected):
            self.wrong.append('the evaluations differ')

    def check_progress(self, run: Path) -> None:
        """Steps that follow one another, data that go on where they were, a rate that does not jump, and the right length."""
        lines = records(run)
        samples = [round(line['epoch'] * SIZE) for line in lines]
        before = [0, *samples[:-1]]
        if [line['step'] for line in lines] != list(range(1, len(lines) + 1)):
            self.wrong.append(f'steps are {[line["step"] for line in lines]}')
        if jumps := {now - then for now, then in zip(samples, before, strict=True)} - {2, 4, 6}:
            self.wrong.append(f'a step of {jumps} samples: {samples}')
        counts_samples, whole = IN_EPOCHS[-1] in WAYS[self.way], round(EPOCHS * SIZE)
        if samples[-1] not in range(whole, whole + 6) if counts_samples else len(lines) != STEPS:
            self.wrong.append(f'the run made {len(lines)} steps and saw {samples[-1]} samples')
        shares = [seen / whole for seen in before] if counts_samples else [step / STEPS for step in range(len(lines))]
        rates = [line['lr'] / lines[0]['lr'] for line in lines]
        if not all(isclose(rate, 1 - share) for rate, share in zip(rates, shares, strict=True)):
            self.wrong.append(f'the learning rate is not what is left of the run: {rates}')

    def summarise(self, seconds: float) -> str:
        rows = [f'{count:5}  {name}' for name, count in self.tally.most_common()]
        where = f'on {len(self.nodes)} nodes' if self.nodes else 'on one node'
        sums = (
            f'{self.done()} faults {where}, {self.in_training} of them after the first step of a start, in {self.lives} starts '
            f'of {self.runs} runs of {STEPS} steps; {seconds / 60:.0f} minutes'
        )
        return '\n'.join([*rows, sums, f'{len(self.wrong)} things were not as they should be', *self.wrong])


def _signal_one(processes: list[psutil.Process], number: signal.Signals, chance: random.Random) -> bool:
    if not processes:
        return False
    try:
        chance.choice(processes).send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _number_in(name: str) -> int:
    """The process in the name of a block of shared memory: torch_<pid>_..."""
    word = name.split('_')[1]
    return int(word) if word.isdecimal() else -1


def evaluations(run: Path) -> list[dict[str, Any]]:
    """The results of each evaluation of a run, without its seconds."""
    return [{key: value for key, value in line.items() if key != 'seconds'} for line in records(run, 'eval')]


def soak(folder: Path, kills: int, seed: int, nodes: Sequence[Node] = ()) -> Soak:
    """The soak, done, in a folder of its own."""
    (folder / 'tmp').mkdir()
    trial = Soak(folder, kills, seed, nodes)
    trial.go()
    return trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--kills', type=int, default=200)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--nodes', type=int, default=1, help='more than 1: number of network namespaces with one rank each (root)'
    )
    given = parser.parse_args()
    print(f'{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}', flush=True)
    with tempfile.TemporaryDirectory(prefix='soak-') as folder:
        place = Path(folder).resolve()
        with bridged(place, given.nodes) if given.nodes > 1 else contextlib.nullcontext([]) as nodes:
            trial = soak(place, given.kills, given.seed, nodes)
    return 1 if trial.wrong else 0


if __name__ == '__main__':
    sys.exit(main())
