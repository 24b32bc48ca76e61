"""A search tries each setting once, and says what is wrong instead of trying on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from phalanx.bench.tuning import search
from phalanx.bench.tuning.search import Request, Search, run_in_parallel
from phalanx.bench.tuning.space import check_space, parse_dimension
from phalanx.system.errors import RequestError, RunError, StoppedError
from run_folder import write_lines

RECIPE, STEPS = 'pp_liteseg_digits', 40


class Runs:
    """Stand-in for the child process of a trial: writes the files of a run whose metric is `score(settings)`."""

    def __init__(self, score: Callable[[dict[str, str]], float]) -> None:
        self.score, self.started = score, list[Path]()

    def __call__(
        self, words: Sequence[str], hear: Callable[[bytes], object], is_stopped: Callable[[], bool], *, quiet: bool
    ) -> None:
        folder = Path(words[words.index('--save_dir') + 1])
        settings = dict(word.split('=', 1) for word in words[words.index('--set') + 1 :])
        self.started.append(folder)
        folder.mkdir(exist_ok=True)
        (folder / 'config.yml').write_text('task: segmentation\n')
        start = {'kind': 'start', 'name': 'x', 'total_steps': STEPS, 'ranks': [{'node': 'a'}], 'step': 0, 'time': 1.0}
        write_lines(folder / 'journal.jsonl', [start])
        hear(json.dumps(start).encode())
        steps = range(20, STEPS + 1, 20)
        events = [{'kind': 'eval', 'step': step, 'mean_iou': self.score(settings) * step / STEPS} for step in steps]
        for number, event in enumerate(events, 1):
            hear(json.dumps(event).encode())
            write_lines(folder / 'metrics.jsonl', events[:number])
            if is_stopped():
                raise StoppedError('stopped')


def a_search(folder: Path, words: Sequence[str], trials: int, **options: Any) -> tuple[Search, list[str]]:
    said = list[str]()
    space = [parse_dimension(word) for word in words]
    request = Request(RECIPE, [], space, trials, 0, **{'prunes': False, **options})
    return Search(request, check_space(RECIPE, [], space), folder, said.append), said


def run(folder: Path, words: Sequence[str], trials: int, **options: Any) -> tuple[Search, list[str]]:
    found, said = a_search(folder, words, trials, **options)
    run_in_parallel(found, [[]])
    return found, said


def test_the_best_trial_has_the_highest_metric_and_a_page_shows_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, 'run_command', Runs(lambda settings: -abs(float(settings['optimizer.lr']) - 0.3)))
    found, said = run(tmp_path, ['optimizer.lr=0.1..0.5'], 8)
    scores = {trial['trial']: trial['value'] for trial in found.records()}
    assert len(scores) == 8
    best = found.best()
    assert best is not None
    assert best.number == max(scores, key=lambda number: scores[number])
    assert said[-1].startswith('trial 7')
    assert 'Importance of the keys' in (tmp_path / 'search.html').read_text()
    assert f'trial_{best.number:03} IMAGES' in found.describe_best()[-1]


def test_a_small_space_is_searched_without_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(lambda settings: float(settings['train.global_batch_size']))
    monkeypatch.setattr(search, 'run_command', runs)
    found, said = run(tmp_path, ['train.global_batch_size=4,6,8'], 9)
    assert sorted(trial['assigned'] for trial in found.records()) == [[f'train.global_batch_size={size}'] for size in (4, 6, 8)]
    assert len(runs.started) == 3
    assert 'the search is complete' in said[-1]


def test_settings_without_an_effect_on_the_recipe_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 and 1.0 are the same rate."""
    monkeypatch.setattr(search, 'run_command', Runs(lambda settings: 1.0))
    with pytest.raises(RequestError, match=r'resolve to the same recipe, although optimizer\.lr differs'):
        run(tmp_path, ['optimizer.lr=1,1.0'], 2)


def test_another_start_continues_the_search_and_the_trial_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ['optimizer.lr=log:1e-4..1']

    def stops(*_: object, **__: object) -> None:
        raise StoppedError('stopped')

    monkeypatch.setattr(search, 'run_command', stops)
    with pytest.raises(StoppedError):
        run(tmp_path, words, 3)
    runs = Runs(lambda settings: 1.0)
    monkeypatch.setattr(search, 'run_command', runs)
    run(tmp_path, words, 3)
    assert [folder.name for folder in runs.started] == ['trial_000', 'trial_001', 'trial_002']
    run(tmp_path, words, 4)
    assert [folder.name for folder in runs.started][3:] == ['trial_003']


def test_a_folder_holds_one_search(tmp_path: Path) -> None:
    a_search(tmp_path, ['optimizer.lr=0.1..0.5'], 3)
    with pytest.raises(RequestError, match=r'holds another search \(optimizer\.lr=0\.1\.\.0\.5\); choose another --save_dir'):
        a_search(tmp_path, ['optimizer.lr=0.1..0.6'], 3)


def test_a_trial_below_the_median_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first five none ends early."""
    monkeypatch.setattr(search, 'run_command', Runs(lambda settings: float(settings['optimizer.lr'])))
    found, _ = run(tmp_path, ['optimizer.lr=0.1..0.5'], 15, prunes=True)
    states = [trial['state'] for trial in found.records()]
    assert set(states[:5]) == {'complete'}
    assert 'pruned' in states


def test_a_recipe_that_always_fails_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RunError('no such image')

    monkeypatch.setattr(search, 'run_command', fails)
    with pytest.raises(RequestError, match='the first 3 trials failed'):
        run(tmp_path, ['optimizer.lr=0.1..0.5'], 9)
    assert 'no such image' in (a_search(tmp_path, ['optimizer.lr=0.1..0.5'], 9)[0].write_page()).read_text()
