"""`phalanx bench scaling`: table of speed-up and efficiency of a recipe on one rank and on several."""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from phalanx.bench.show import Row, format_markdown, format_text
from phalanx.engine.job import Job
from phalanx.engine.timeline import in_steps
from phalanx.report.charts import Chart, Line, Points, chart
from phalanx.report.page import read_lines, render
from phalanx.report.readable import format_duration, format_mebibytes, format_number, format_percent, pluralize
from phalanx.system.disk import read_end, write_atomically
from phalanx.system.errors import RunError

LONGEST_RUN = 7 * 24 * 3600.0  # seconds that a node waits for the others while they do a run without it


@dataclass(frozen=True)
class Nodes:
    """The nodes of a comparison, as one of them sees them; ranks fill one after the other."""

    count: int
    number: int  # of this node, 0 .. count - 1
    addresses: tuple[str, ...]  # of all nodes, in order; or of the first alone, where the others meet it
    ranks_each: int
    port: int  # of the first run; each has one of its own, since a node may be a run ahead of another
    join_timeout: float

    def of(self, world: int) -> int:
        """Number of nodes that `world` ranks fill. Raises ValueError if they do not fill them evenly."""
        if world > self.ranks_each * self.count or (world > self.ranks_each and world % self.ranks_each):
            raise ValueError(
                f'--world {world}: {self.count} nodes of {self.ranks_each} ranks are filled one by one; '
                f'give up to {self.ranks_each}, or a multiple of it up to {self.ranks_each * self.count}'
            )
        return math.ceil(world / self.ranks_each)

    @property
    def described(self) -> str:
        """The nodes, for the facts of a table."""
        listed = ', '.join(self.addresses)
        return listed if len(self.addresses) == self.count else f'{self.count}, the first is {listed}'

    def flags(self, world: int, run: int) -> list[str]:
        """Launch flags of the `run`-th run. All nodes take part in the first; later, some wait for runs of others."""
        patience = self.join_timeout if run == 0 else max(self.join_timeout, LONGEST_RUN)
        nodes, port, ranks = self.of(world), self.port + run, ['--nproc_per_node', str(min(world, self.ranks_each))]
        if nodes == 1:
            return ranks
        if len(self.addresses) == self.count:
            where = ['--ips', ','.join(self.addresses[:nodes]), '--start_port', str(port)]
        else:
            where = ['--nnodes', str(nodes), '--master', f'{self.addresses[0]}:{port}', '--rank', str(self.number)]
        return [*where, *ranks, '--join_timeout', str(patience)]


def total_steps(job: Job, world: int) -> int:
    """Steps of the whole training on `world` ranks, as the trainer counts them."""
    train = job.recipe.train
    steps_per_epoch = len(job.task.dataset('train')) / train.global_batch(world)
    return train.steps or in_steps(train.epochs or 0, steps_per_epoch)


@dataclass(frozen=True)
class Comparison:
    """Runs of a comparison: each world `repeats` times, in turns, so that a slow minute of a node affects all worlds.

    The largest world is first: what keeps the nodes from training together is then found at once.
    """

    recipe: str
    assignments: tuple[str, ...]
    worlds: Sequence[int]
    steps: int | None  # None: to the end, with evaluation
    repeats: int
    threads: int  # of each rank on CPUs
    folder: Path
    nodes: Nodes | None = None  # None: this one alone

    def runs(self) -> list[tuple[int, int]]:
        """(repeat, world) of each run, in order."""
        return list(itertools.product(range(self.repeats), sorted(self.worlds, reverse=True)))


@dataclass(frozen=True)
class TrainingRun:
    """Result of one run."""

    world: int
    samples: int  # of the whole training
    global_batch_size: int
    seconds: float  # of the whole training; when only a part was run, at the pace of that part
    samples_per_s: float
    memory_mb: float  # of one rank
    metric: float | None = None
    loss: Points = ()
    metrics: Points = ()

    @classmethod
    def read(cls, folder: Path, world: int, total_steps: int, full: bool) -> TrainingRun:
        """From a run folder. The first log line is left out, unless it is the only one: it holds what happens only once."""
        summary = json.loads((folder / 'summary.json').read_text(encoding='utf-8'))
        lines = read_lines(folder / 'metrics.jsonl')
        train = [line for line in lines if line['kind'] == 'train']
        batch = summary['global_batch_size']
        main_metric = summary['main_metric']
        pairs = itertools.pairwise(train if len(train) > 1 else [{'step': 0}, *train])
        taken = [(later['step'] - earlier['step'], later['samples_per_s']) for earlier, later in pairs]
        pace = sum(steps for steps, _ in taken) / math.fsum(steps / rate for steps, rate in taken)
        return cls(
            world=world,
            samples=total_steps * batch,
            global_batch_size=batch,
            seconds=summary['seconds'] if full else total_steps * batch / pace,
            samples_per_s=pace,
            memory_mb=summary['peak_memory_mb'],
            metric=summary['metrics'].get(main_metric) if full else None,
            loss=[(line['step'], line['loss']) for line in train],
            metrics=[(line['step'], line[main_metric]) for line in lines if line['kind'] == 'eval'],
        )


def run_all(comparison: Comparison, total_steps: Mapping[int, int]) -> list[TrainingRun]:
    """Every run, one after the other; `total_steps` of the whole training by world. Only the first node has results.

    Raises RunError: at once, but with several nodes at the end, since the others go on with the next run.
    """
    comparison.folder.mkdir(parents=True, exist_ok=True)
    full, nodes, runs, failed = comparison.steps is None, comparison.nodes, [], []
    with tempfile.TemporaryDirectory(prefix='phalanx-') as scratch:
        # repeats alternate between world sizes, so that slow drifts of the machine hit all of them
        for number, (repeat, world) in enumerate(comparison.runs()):
            if nodes and nodes.number >= nodes.of(world):
                continue
            name = f'world_{world}_{repeat + 1}'
            folder = (comparison.folder if full else Path(scratch)) / name  # short runs leave nothing worth keeping
            where = nodes.flags(world, number) if nodes else ['--nproc_per_node', str(world)]
            # on several nodes a failed run must not stop this node: the others wait in the next one
            try:
                _train(comparison, world, folder, comparison.folder / f'{name}.log', where)
            except RunError as error:
                failed.append(str(error))
                if nodes is None:
                    break
            else:
                if nodes is None or nodes.number == 0:
                    runs.append(TrainingRun.read(folder, world, total_steps[world], full))
    if failed:
        raise RunError('\n'.join(failed))
    return runs


def _train(comparison: Comparison, world: int, folder: Path, log: Path, where: Sequence[str]) -> None:
    print(f'{pluralize(world, "rank")}, log: {log}', file=sys.stderr, flush=True)
    chosen = list(comparison.assignments)
    if comparison.steps is not None:
        every = max(1, comparison.steps // 5)
        chosen += [f'train.until={comparison.steps}', f'report.every={every}', 'evaluate.enabled=false']
    words = [comparison.recipe, '--save_dir', str(folder), '--fresh', *where]
    with log.open('w') as output:
        ended = subprocess.run(
            [sys.executable, '-m', 'phalanx', 'train', *words, *(['--set', *chosen] if chosen else [])],
            env={**os.environ, 'OMP_NUM_THREADS': str(comparison.threads)},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ended.returncode != 0:
        last = read_end(log).rstrip().rpartition('\n')[2]
        raise RunError(f'{world} ranks ended with status {ended.returncode} (log: {log}): {last}')


# The table.


def compare(runs: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """One line per world, relative to the smallest, which comes first; medians over the repeats."""
    by_world = {world: [run for run in runs if run.world == world] for world in sorted({run.world for run in runs})}
    # the first line is the smallest world, which all others are compared with
    lines: list[dict[str, Any]] = []
    for world, of_world in by_world.items():
        rates, scores = [run.samples_per_s for run in of_world], [run.metric for run in of_world if run.metric is not None]
        seconds, metric = statistics.median(run.seconds for run in of_world), statistics.fmean(scores) if scores else None
        base: dict[str, Any] = lines[0] if lines else {'world': world, 'seconds': seconds, 'metric': metric}
        speed_up = base['seconds'] / seconds
        lines.append(
            {
                'world': world,
                'global_batch_size': of_world[0].global_batch_size,
                'seconds': seconds,
                'samples_per_s': statistics.median(rates),
                'spread': (max(rates) - min(rates)) / statistics.median(rates),
                'speed_up': speed_up,
                'efficiency': speed_up * base['world'] / world,
                'memory_mb': max(run.memory_mb for run in of_world),
                'metric': metric,
                'metric_change': None if metric is None or base['metric'] is None else metric - base['metric'],
            }
        )
    return lines


def collect_facts(job: Job, comparison: Comparison) -> dict[str, str]:
    """Collect the settings that a reader of the table must know."""
    train, names = job.recipe.train, job.resolved.value
    per_rank = f'{train.batch_size_per_rank} samples per rank' if train.batch_size_per_rank else 'the same global batch on all'
    length = 'trained to the end' if comparison.steps is None else f'time of the whole training, from {comparison.steps} steps'
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and job.recipe.device != 'cpu' else 'CPU'
    return {
        'recipe': job.name,
        'model': str(names['model'].value['name'].value),
        'data': str(names['data'].value['name'].value),
        'batch': per_rank,
        'time': f'{length}; median of {comparison.repeats}, the worlds taking turns',
        'device': f'{device}, {pluralize(comparison.threads, "thread")} per rank, {platform.machine()}',
        **({'nodes': comparison.nodes.described} if comparison.nodes else {}),
        'versions': f'torch {torch.__version__}, python {platform.python_version()}',
        'date': time.strftime('%Y-%m-%d'),
    }


def table(lines: Sequence[Mapping[str, Any]], main_metric: str) -> list[Row]:
    """Table rows as text."""
    has_metric = any(line['metric'] is not None for line in lines)
    return [
        {
            'ranks': str(line['world']),
            'global batch': str(line['global_batch_size']),
            'time': format_duration(line['seconds']),
            'speed-up': f'{line["speed_up"]:.2f}',
            'efficiency': format_percent(line['efficiency']),
            'images/s': format_number(line['samples_per_s']),
            'spread': format_percent(line['spread']),
            'memory per rank': format_mebibytes(line['memory_mb']),
            **(
                {main_metric: format_number(line['metric']), 'change': format_number(line['metric_change'])}
                if has_metric
                else {}
            ),
        }
        for line in lines
    ]


def write(folder: Path, facts: Mapping[str, str], main_metric: str, runs: Sequence[TrainingRun]) -> tuple[dict[str, Any], str]:
    """scaling.txt, .md, .json and .html, the last without network or script; returns what they say, for JSON and as text.

    Raises OSError.
    """
    lines = compare(runs)
    rows = table(lines, main_metric)
    record = {**facts, 'worlds': lines}
    text = '\n'.join([*(f'{name}: {fact}' for name, fact in facts.items()), '', format_text(rows)])
    markdown = '\n'.join([*(f'- {name}: {fact}' for name, fact in facts.items()), '', format_markdown(rows)])
    charts = _charts(lines, runs, main_metric)
    page = render('scaling.html', {'title': f'Scaling of {facts["recipe"]}', 'rows': rows, 'charts': charts, 'facts': facts})
    for name, content in (
        ('scaling.txt', text + '\n'),
        ('scaling.md', markdown + '\n'),
        ('scaling.json', json.dumps(record, indent=1) + '\n'),
        ('scaling.html', page),
    ):
        write_atomically(folder / name, content.encode())
    return record, text


def _charts(lines: Sequence[Mapping[str, Any]], runs: Sequence[TrainingRun], main_metric: str) -> list[Chart]:
    """Speed-up over ranks, and curves of the first run of each world."""
    last = int(max((step for run in runs for step, _ in run.loss), default=1))
    first = sorted({run.world: run for run in reversed(runs)}.items())
    loss = [Line(pluralize(world, 'rank'), run.loss, colour) for colour, (world, run) in enumerate(first)]
    scores = [Line(pluralize(world, 'rank'), run.metrics, colour) for colour, (world, run) in enumerate(first)]
    measured = Line('measured', [(line['world'], line['speed_up']) for line in lines], 0)
    linear = Line('linear', [(line['world'], line['world'] / lines[0]['world']) for line in lines], 5)
    return [
        *chart('Speed-up', [measured, linear], lines[-1]['world'], over='ranks', zero=True),
        *chart('Loss', loss, last),
        *chart(main_metric, scores, last),
    ]
