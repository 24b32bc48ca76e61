"""The report of a run: what it prints, what it writes, and that neither can end a training."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from phalanx.engine.progress import Progress
from phalanx.families.figures import Curves, Grade, Legend, Matrix, Pictures, Table
from phalanx.report.evaluation import Evaluation, Worst
from phalanx.report.report import Report
from phalanx.report.single import print_evaluation
from phalanx.report.trackers.local import TensorBoard

FACTS = {'recipe': 'digits', 'run folder': '/a/folder/[1]'}
RANKS: list[dict[str, str | int]] = [{'rank': 0, 'node': 'a', 'device': 'cpu', 'pid': 1234}]


def record(step: int, loss: float = 0.5) -> dict[str, float]:
    return {
        'step': step,
        'epoch': step / 8,
        'loss': loss,
        'loss/main': loss - 0.125,
        'loss/aux': 0.125,
        'lr': 0.01,
        'samples_per_s': 100.0,
        'data_wait': 0.25,
        'memory_mb': 512.0,
    }


def paper() -> tuple[Console, io.StringIO]:
    """A console that is a file, and what is written in it."""
    text = io.StringIO()
    return Console(file=text, width=100), text


def a_report(folder: Path, console: Console | None = None) -> Report:
    events = {'tensorboard': TensorBoard}
    return Report(folder, main=True, name='digits', total_steps=20, trackers=events, console=console or paper()[0])


def evaluate(report: Report, step: int, best: bool = True) -> None:
    table = [{'class': 'one', 'iou': 0.75}]
    report.evaluation(step, Evaluation(metrics={'mean_iou': 0.75}, table=table, seconds=2.0, samples=13), best=best)


def lines(folder: Path, name: str = 'metrics.jsonl') -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in (folder / name).read_text().splitlines()]


def test_a_log_line_is_one_json_object_with_its_terms_apart(tmp_path: Path) -> None:
    with a_report(tmp_path) as report:
        report.train(record(1))
        evaluate(report, 1)
    assert lines(tmp_path) == [
        {
            'kind': 'train',
            'step': 1,
            'epoch': 0.125,
            'loss': 0.5,
            'terms': {'main': 0.375, 'aux': 0.125},
            'lr': 0.01,
            'samples_per_s': 100.0,
            'data_wait': 0.25,
            'memory_mb': 512.0,
        },
        {'kind': 'eval', 'step': 1, 'mean_iou': 0.75, 'samples': 13, 'seconds': 2.0},
    ]


def test_samples_without_valid_labels_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loss of exactly 0, and an evaluation without valid labels: once for all log lines, at each evaluation."""
    with a_report(tmp_path) as report:
        report.train(record(1, 0.0))
        report.train(record(2, 0.0))
        report.evaluation(2, Evaluation(metrics={'mean_iou': float('nan'), 'kappa': 0.5}, seconds=2.0, samples=13), best=False)
    journal = [json.loads(line) for line in (tmp_path / 'journal.jsonl').read_text().splitlines()]
    assert [line['text'].partition(' (')[0] for line in journal if line['kind'] == 'warning'] == [
        'the loss is exactly 0, as if the training samples have no valid labels',
        'mean_iou: undefined, as the evaluation samples have no valid labels',
    ]


def test_an_evaluation_without_a_number_is_not_the_best() -> None:
    at = Progress(step=5)
    assert not at.record_evaluation({'mean_iou': float('nan')}, ('mean_iou',)) and at.best is None
    assert at.record_evaluation({'mean_iou': 0.0}, ('mean_iou',))
    assert not at.record_evaluation({'mean_iou': float('nan')}, ('mean_iou',)) and at.best == 0


def test_a_log_line_is_on_disk_before_the_next_step(tmp_path: Path) -> None:
    with a_report(tmp_path) as report:
        report.train(record(1))
        assert len(lines(tmp_path)) == 1


def test_infinite_numbers_and_nan_are_null_in_json(tmp_path: Path) -> None:
    with a_report(tmp_path) as report:
        report.train({**record(1, float('nan')), 'grad_norm': float('inf')})
        table = [{'class': 'one', 'iou': float('nan')}]
        report.evaluation(1, Evaluation(metrics={'kappa': float('nan')}, table=table, seconds=1.0, samples=13), best=False)
    train, evaluation = lines(tmp_path)
    assert (train['loss'], train['terms']['main'], train['grad_norm'], evaluation['kappa']) == (None, None, None, None)
    assert json.loads((tmp_path / 'table.json').read_text())['rows'] == [{'class': 'one', 'iou': None}]


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    """Killed after step 4 in the middle of a line, resumed at step 2."""
    with a_report(tmp_path) as report:
        for step in (1, 2, 3, 4):
            report.train(record(step))
        evaluate(report, 4)
    with (tmp_path / 'metrics.jsonl').open('a') as log:
        log.write('{"kind": "train", "st')
    with a_report(tmp_path) as report:
        report.resume(2)
        assert [line['step'] for line in lines(tmp_path)] == [1, 2]
        report.train(record(3, loss=0.25))
    assert [(line['step'], line['loss']) for line in lines(tmp_path)] == [(1, 0.5), (2, 0.5), (3, 0.25)]


def test_a_run_that_starts_again_in_its_folder_begins_a_new_log(tmp_path: Path) -> None:
    for loss in (0.5, 0.25):
        with a_report(tmp_path) as report:
            report.train(record(1, loss))
    assert [line['loss'] for line in lines(tmp_path)] == [0.25]


def test_a_full_disk_costs_lines_and_not_the_run(tmp_path: Path) -> None:
    """/dev/full answers every write with `No space left on device`."""
    (tmp_path / 'metrics.jsonl').symlink_to('/dev/full')
    console, text = paper()
    with a_report(tmp_path, console) as report:
        for step in (1, 2, 3):
            report.train(record(step))
        report.finish({'steps': 3})
    assert text.getvalue().count('metrics.jsonl could not be written (No space left on device)') == 1
    assert '3 x metrics.jsonl' in text.getvalue()


def test_a_line_that_the_disk_takes_in_part_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: a write up to it succeeds in part, as on one that fills up."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with a_report(tmp_path) as report:
        report.note('first')
        size = (tmp_path / 'journal.jsonl').stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
        try:
            report.note('second')
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        report.note('third')
        assert report.not_written == {'journal.jsonl': 2}  # the second note, and the warning that it is missing
    assert [line['text'] for line in lines(tmp_path, 'journal.jsonl')] == ['first', 'third']


def test_tensorboard_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / 'tensorboard').write_text('a file where the folder should be')
    console, text = paper()
    with a_report(tmp_path, console) as report:
        report.train(record(1))
        report.train(record(2))
    assert [line['step'] for line in lines(tmp_path)] == [1, 2]
    assert text.getvalue().count('warning: tracker tensorboard could not be written') == 1


def test_a_file_gets_aligned_lines_without_control_characters(tmp_path: Path) -> None:
    console, text = paper()
    with a_report(tmp_path, console) as report:
        report.world(FACTS, RANKS)
        report.train(record(9))
        report.train(record(10, loss=12.5))
        report.warning('a sample [bold]in brackets[/bold] ' + 'x' * 200)
        evaluate(report, 10)
        report.saved(10, Path('checkpoints/step_0000010'), 0.25, 8.0)
        report.finish({'metrics': {'mean_iou': 0.75}, 'main_metric': 'mean_iou', 'best': 0.75, 'best_step': 10, 'steps': 10})
    assert not re.search(r'[\x00-\x09\x0b-\x1f\x7f]', text.getvalue())
    printed = text.getvalue().splitlines()
    first, second = (line for line in printed if ' epoch ' in line)
    assert first.startswith('step  9/20  epoch   1.12  loss  0.5000  main  0.3750  aux  0.1250  lr 1.00e-02')
    assert first.index('samples/s') == second.index('samples/s')
    assert 'warning: a sample [bold]in brackets[/bold] ' + 'x' * 200 in printed
    assert 'step 10/20  evaluated  mean_iou 0.7500  13 samples in 2.0 s  best so far' in printed
    assert '/a/folder/[1]' in text.getvalue()
    assert 'best mean_iou  0.7500 at step 10' in printed


def test_the_table_is_printed_only_at_the_end(tmp_path: Path) -> None:
    console, text = paper()
    with a_report(tmp_path, console) as report:
        evaluate(report, 5)
        assert 'class' not in text.getvalue()
        report.finish({'steps': 5})
    assert re.search(r'class +iou', text.getvalue())


@pytest.mark.parametrize('width', [80, 120])
def test_the_progress_bar_fits_and_the_terminal_is_restored_after_a_crash(tmp_path: Path, width: int) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, legacy_windows=False, _environ={'TERM': 'xterm'})
    with pytest.raises(RuntimeError, match='cut off'), a_report(tmp_path, console) as report:
        report.train(record(7))
        raise RuntimeError('cut off')
    shown = [re.sub(r'\x1b\[[0-9;?]*[A-Za-z]', '', line) for line in re.split(r'[\r\n]+', text.getvalue())]
    bars = [line for line in shown if '7/20' in line]
    assert bars and all(len(line) <= width and 'loss 0.5000' in line and 'wait 25%' in line for line in bars)
    assert text.getvalue().count('\x1b[?25l') == text.getvalue().count('\x1b[?25h') == 1  # the cursor, hidden and shown
    assert len(lines(tmp_path)) == 1
    assert (tmp_path / 'report.html').is_file()


def test_other_ranks_write_to_their_log_and_to_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    console, text = paper()
    folder = tmp_path / 'run'
    with (
        caplog.at_level(logging.INFO, 'phalanx'),
        Report(folder, main=False, name='x', total_steps=9, console=console) as report,
    ):
        report.resume(2)
        report.world(FACTS, RANKS)
        report.train(record(3))
        evaluate(report, 3)
        report.pictures([[('image', np.zeros((4, 4, 3), np.uint8))]])
        report.warning('slow disk')
        report.finish({'steps': 3})
    assert not folder.exists()
    assert text.getvalue() == ''
    assert [(line.levelname, line.message) for line in caplog.records if 'slow' in line.message] == [
        ('WARNING', 'warning: slow disk')
    ]


def test_tensorboard_shows_each_step_of_a_resumed_run_once(tmp_path: Path) -> None:
    """Read back by TensorBoard's own reader, which drops what a restart declares out of date."""
    for start, loss in ((0, 0.5), (2, 0.25)):
        with a_report(tmp_path) as report:
            if start:
                report.resume(start)
            for step in range(start + 1, start + 4):
                report.train(record(step, loss))
            evaluate(report, start + 3)
    events = EventAccumulator(str(tmp_path / 'tensorboard')).Reload()
    assert [(event.step, event.value) for event in events.Scalars('train/loss')] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.25),
        (4, 0.25),
        (5, 0.25),
    ]
    assert [event.step for event in events.Scalars('eval/mean_iou')] == [5]
    assert 'train/loss/aux' in events.Tags()['scalars']


def test_pictures_are_kept_exactly_when_small_and_shrunk_when_large(tmp_path: Path) -> None:
    small = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    with a_report(tmp_path) as report:
        report.pictures([[('image', small), ('truth', np.zeros((500, 2000, 3), np.uint8))]])
    (row,) = json.loads((tmp_path / 'pictures' / 'index.json').read_text())
    assert [cell['caption'] for cell in row] == ['image', 'truth']
    kept, shrunk = (Image.open(tmp_path / 'pictures' / cell['file']) for cell in row)
    assert np.array_equal(np.asarray(kept), small)
    assert shrunk.size == (800, 200)


def test_a_report_may_show_no_picture(tmp_path: Path) -> None:
    with a_report(tmp_path) as report:
        report.pictures([])
        assert not report.not_written
    assert json.loads((tmp_path / 'pictures' / 'index.json').read_text()) == []


def test_figures_of_the_last_evaluation_are_kept_beside_its_table(tmp_path: Path) -> None:
    picture = np.full((4, 6, 3), 7, np.uint8)
    figures = [
        Curves('Precision', 'recall', 'precision', {'a': [(0.0, 1.0), (1.0, math.nan)]}),
        Matrix('Taken', ('a', 'b'), [[1, 2], [3, 4]]),
        Pictures('Wrong', [("a.png: read '1'", [('truth', picture)])]),
        Legend({'a': '#102030'}),
    ]
    with a_report(tmp_path) as report:
        report.evaluation(1, Evaluation(metrics={'iou': 0.5}, seconds=1.0, samples=2, figures=figures), best=True)
    curves, matrix, wrong, legend = json.loads((tmp_path / 'table.json').read_text())['figures']
    assert curves['lines'] == {'a': [[0.0, 1.0], [1.0, None]]}
    assert matrix == {'kind': 'matrix', 'title': 'Taken', 'names': ['a', 'b'], 'counts': [[1, 2], [3, 4]]}
    ((caption, (cell,)),) = [(row['caption'], row['cells']) for row in wrong['rows']]
    assert (caption, cell['caption']) == ("a.png: read '1'", 'truth')
    assert np.array_equal(np.asarray(Image.open(tmp_path / 'pictures' / cell['file'])), picture)
    assert legend == {'kind': 'legend', 'colours': {'a': '#102030'}}
    assert 'Taken' in (tmp_path / 'report.html').read_text()


def test_the_summary_is_written_whole_and_a_disk_without_room_for_it_is_reported(tmp_path: Path) -> None:
    with a_report(tmp_path) as report:
        report.finish({'steps': 5, 'best': None})
        assert json.loads((tmp_path / 'summary.json').read_text()) == {'steps': 5, 'best': None}
        (tmp_path / 'summary.json').unlink()
        (tmp_path / 'summary.json').mkdir()
        with pytest.raises(IsADirectoryError):
            report.finish({'steps': 5})
    assert not list(tmp_path.glob('.*'))


def test_an_evaluation_by_itself_prints_its_table_and_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    found = Evaluation(
        metrics={'mean_iou': 0.75},
        table=[{'class': 'one', 'iou': 0.75, 'pixels': 5120.0}],
        figures=[
            Matrix('Taken', ('a', 'b', 'c'), [[9, 2, 0], [3, 4, 0], [0, 0, 1]]),
            Table('Errors', [{'cause': 'missed', 'lost': 0.25}]),
        ],
        samples=13,
        seconds=75.0,
        worst=[Worst(4, 'x.png', Grade(0.25, 'mean IoU 0.25'))],
    )
    print_evaluation(found)
    printed = capsys.readouterr().out
    assert re.search(r'mistaken +b taken for a \(3 times\); a taken for b \(2 times\)\n', printed)
    assert re.search(r'worst 1 +x\.png: mean IoU 0\.25\n', printed)
    assert re.search(r'one +0\.7500 +5,120', printed)
    assert re.search(r'cause +lost', printed) and re.search(r'missed +0\.2500', printed)
    assert re.search(r'samples +13\ntime +1 min 15 s', printed)
