"""Overview of the runs in a folder: recipe, differences, metric, time and state of each."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.config.read import ConfigError, load_yaml
from phalanx.engine.folder import HARMLESS, leaves
from phalanx.report.page import read_lines
from phalanx.system.disk import LOCK, is_locked
from phalanx.system.errors import RequestError

DEEPEST = 4  # levels below the folder in which runs are looked for
EVALUATION = b'{"kind": "eval"'  # beginning of a line of metrics.jsonl: most others are not parsed
TAIL = 1 << 16  # bytes at the end of metrics.jsonl that contain its last line


class RunFolderError(RequestError):
    """Folder whose files are not those of a run, or are damaged; the message names it."""


class Score(NamedTuple):
    """Best value of the main metric of a run."""

    metric: str
    value: float
    step: int


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run, from the files of its folder."""

    folder: Path
    recipe: str  # name of the recipe
    state: str  # finished, running, stopped, or failed
    step: int
    total_steps: int
    score: Score | None  # None before the first evaluation
    seconds: float  # spent in all starts
    goodput: float | None  # time in the steps of the newest checkpoint / time from the first start to it; None without one
    begun: float  # time of the first start, in seconds since 1970
    hosts: tuple[str, ...]  # of the latest start
    world_size: int  # of the latest start
    keys: dict[str, Any]  # resolved recipe: value by dotted key

    def as_json(self) -> dict[str, Any]:
        """Facts for scripts, without the keys of the recipe."""
        facts = {**vars(self), 'folder': str(self.folder), 'score': self.score and self.score._asdict()}
        del facts['keys']
        return facts


def find_runs(folder: Path) -> tuple[list[RunFacts], list[str]]:
    """Return the runs in `folder` and below, the earliest first, and why others cannot be read.

    Raises RequestError if there are none.
    """
    runs, unreadable = list[RunFacts](), list[str]()
    for place in _run_folders(folder, DEEPEST):
        try:
            runs.append(read_facts(place))
        except RunFolderError as error:
            unreadable.append(str(error))
    if not runs:
        what = 'has no run folders (config.yml and journal.jsonl)' if folder.is_dir() else 'no such folder'
        advice = f'{folder}: {what}; give the folder that `--save_dir` named, or the one above it'
        raise RequestError('\n'.join(unreadable) or advice)
    return sorted(runs, key=lambda run: (run.begun, str(run.folder))), unreadable


def read_facts(folder: Path) -> RunFacts:
    """Return the facts of a run folder. Raises RunFolderError if its files are not those of a run that has started."""
    if not _is_run_folder(folder):
        raise RunFolderError(f'{folder}: not a run folder (config.yml, journal.jsonl); `phalanx runs` lists those in runs/')
    try:
        return _read_facts(folder)
    except ConfigError as error:
        raise RunFolderError(str(error)) from None
    except ValueError as error:
        raise RunFolderError(f'{folder}: {error}') from None
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f'{folder}: its files are not those of a run ({type(error).__name__}: {error})') from None


def _read_facts(folder: Path) -> RunFacts:
    keys = {key: value for key, value, _ in leaves(load_yaml(folder / 'config.yml'))}
    journal = read_lines(folder / 'journal.jsonl')
    starts = [line for line in journal if line['kind'] == 'start']
    if not starts:
        raise ValueError('journal.jsonl: names no start of a run')
    latest, summary = starts[-1], _read_summary(folder)
    metrics = folder / 'metrics.jsonl'
    step = max(_last_step(metrics), summary.get('steps', 0))
    is_running = is_locked(folder / LOCK)
    is_finished = not is_running and summary.get('steps') == step  # written at the end alone; a prolonged run is beyond it
    return RunFacts(
        folder=folder,
        recipe=str(latest['name']),
        state='running' if is_running else 'finished' if is_finished else _how_it_ended(journal[-1]),
        step=step,
        total_steps=int(latest['total_steps']),
        score=_best_score(metrics, summary.get('main_metric') or keys.get('main_metric')),
        seconds=float(summary['seconds']) if is_finished else _time_spent(journal, metrics),
        goodput=_goodput(journal, float(starts[0]['time'])),
        begun=float(starts[0]['time']),
        hosts=tuple(dict.fromkeys(str(rank['node']) for rank in latest['ranks'])),
        world_size=len(latest['ranks']),
        keys=keys,
    )


def differing_keys(runs: Sequence[RunFacts]) -> list[dict[str, Any]]:
    """Return for each run the keys whose value is not that of most runs of the same recipe, with its values.

    Keys that change what a run costs or shows, but not what it computes, are left out. With two runs the first one has no
    differences.
    """
    found = []
    for run in runs:
        alike = [other.keys for other in runs if other.recipe == run.recipe]
        names = [key for key in dict.fromkeys(key for keys in alike for key in keys) if not key.startswith(HARMLESS)]
        usual = {key: Counter(_text(keys.get(key)) for keys in alike).most_common(1)[0][0] for key in names}
        found.append({key: run.keys.get(key) for key in names if _text(run.keys.get(key)) != usual[key]})
    return found


def _text(value: object) -> str:
    """Return a value as text, equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the run folders in `folder` and below. Links are not followed: they could lead in circles."""
    if _is_run_folder(folder):
        yield folder
    elif depth and folder.is_dir():
        for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
            yield from _run_folders(path, depth - 1)


def _is_run_folder(folder: Path) -> bool:
    return (folder / 'config.yml').is_file() and (folder / 'journal.jsonl').is_file()


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    """Parse a JSON object in the file at `path`. Raises ValueError with its name."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError(f'{path.name}: is not JSON as a run writes it ({error})') from None


def _read_summary(folder: Path) -> dict[str, Any]:
    path = folder / 'summary.json'
    return _parse(path.read_bytes(), path) if path.is_file() else {}


def _last_step(metrics: Path) -> int:
    """Return the step of the last complete line of metrics.jsonl, 0 without one, reading only the end of the file."""
    if not metrics.is_file():
        return 0
    with metrics.open('rb') as file:
        file.seek(max(0, metrics.stat().st_size - TAIL))
        lines = file.read().split(b'\n')[:-1]  # what follows the last line break was cut off by a crash
    return int(_parse(lines[-1], metrics)['step']) if lines else 0


def _best_score(metrics: Path, name: str | None) -> Score | None:
    """Return the best evaluation by the main metric (by default the first one); of equals the last, as in training."""
    best: Score | None = None
    with (metrics if metrics.is_file() else Path(os.devnull)).open('rb') as file:
        for line in file:
            if line.startswith(EVALUATION) and line.endswith(b'\n'):
                values = _parse(line, metrics)
                name = name or next(key for key in values if key not in ('kind', 'step'))
                value = values.get(name)
                if value is not None and (best is None or value >= best.value):
                    best = Score(name, value, values['step'])
    return best


def _how_it_ended(last: dict[str, Any]) -> str:
    """Return the state of a run that ended before its last step, from the last line of its journal."""
    return 'failed' if last['kind'] == 'warning' and last['text'].startswith('the run failed') else 'stopped'


def _goodput(journal: Sequence[dict[str, Any]], begun: float) -> float | None:
    saved = next((line for line in reversed(journal) if line['kind'] == 'saved' and 'in_steps' in line), None)
    return saved['in_steps'] / max(saved['time'] - begun, 1e-9) if saved else None


def _time_spent(journal: Sequence[dict[str, Any]], metrics: Path) -> float:
    """Return the seconds between the beginning and the last sign of life of each start."""
    spent, begun, latest = 0.0, None, 0.0
    for line in journal:
        if line['kind'] == 'start':
            spent += latest - begun if begun is not None else 0.0
            begun = line['time']
        latest = line['time']
    # Log lines have no time: the last one is as old as its file.
    latest = max(latest, min(metrics.stat().st_mtime, time.time())) if metrics.is_file() else latest
    return spent + (latest - begun if begun is not None else 0.0)
