"""The last line of a command names the next one, ready to copy; those that train, predict or export are tested with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.config.arguments import PLUGINS
from run_folder import finish, write_run


def next_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()[-1]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ('a run', 'b'):
        (tmp_path / 'runs' / name / 'checkpoints').mkdir(parents=True)
        write_run(tmp_path / 'runs' / name)
        finish(tmp_path / 'runs' / name)
    return tmp_path / 'runs'


def test_runs_are_compared_next(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert next_of(capsys, 'runs') == "next: phalanx compare 'runs/a run' runs/b"


def test_a_run_is_evaluated_next_to_its_report(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert next_of(capsys, 'report', 'runs/a run') == "next: phalanx eval 'runs/a run' --page eval.html"


def test_the_better_run_is_exported_next(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = runs / 'b' / 'metrics.jsonl'
    metrics.write_text(metrics.read_text().replace('0.8125', '0.9125'))
    assert next_of(capsys, 'compare', 'runs/a run', 'runs/b', '--no_eval') == 'next: phalanx export runs/b'


def test_runs_with_different_metrics_have_no_better_one(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ('metrics.jsonl', 'summary.json'):
        text = (runs / 'b' / file).read_text()
        (runs / 'b' / file).write_text(text.replace('mean_iou', 'hmean'))
    assert next_of(capsys, 'compare', 'runs/a run', 'runs/b', '--no_eval').startswith('page: ')


def test_a_plugin_whose_path_would_be_split_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PLUGINS, '')
    with pytest.raises(SystemExit):
        main(['config', 'unet_digits', '--plugin', 'a:b.py'])
    assert 'a:b.py: : separates files in PHALANX_PLUGINS; rename the file or its folder' in capsys.readouterr().err


def test_published_weights_are_fetched_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert next_of(capsys, 'weights') == 'next: phalanx weights get NAME'


def test_shipped_recipes_are_looked_at_or_trained_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert next_of(capsys, 'config') == 'next: phalanx config NAME, phalanx train NAME'


def test_a_resolved_recipe_is_trained_next_and_can_still_go_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['config', 'unet_digits']) == 0
    shown = capsys.readouterr()
    assert shown.err == 'next: phalanx train unet_digits; --explain KEY shows the values that a key takes\n'
    assert 'next: ' not in shown.out


def test_the_next_command_repeats_the_plugins_and_assignments_of_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGINS, '')
    (tmp_path / 'my parts.py').write_text('PLUGIN = {}')
    plugin, assigned = ('--plugin', str(tmp_path / 'my parts.py')), ('ema=null', 'data.size=[32, 64]')
    assert main(['config', 'unet_digits', *plugin, '--set', *assigned]) == 0
    options = f"--plugin '{tmp_path}/my parts.py' --set ema=null 'data.size=[32, 64]'"
    assert f'next: phalanx train unet_digits {options}; --explain' in capsys.readouterr().err
