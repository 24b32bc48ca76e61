"""Report of a run, and the only printer: every rank calls its `Report`; that of the main rank prints and writes files.

metrics.jsonl   one JSON object per log line or evaluation, each step once      summary.json   result of the run
journal.jsonl   starts, notes, warnings, checkpoints, with their time           table.json     details of the latest evaluation
report.html     page built from these files (`page.write_page`)                 pictures/      evaluation samples
curves.json     summary of a long metrics.jsonl (`history.History`)

The same numbers go to the trackers of the run (`trackers.py`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from phalanx.families.figures import Figure
from phalanx.report.evaluation import Evaluation
from phalanx.report.figures import save_figures, save_pictures
from phalanx.report.history import SUMMARISED, History, Log, write_summary
from phalanx.report.page import write_page
from phalanx.report.readable import format_duration, format_mebibytes, format_number, format_percent, make_finite, pluralize
from phalanx.report.terminal import align, make_table, terminal
from phalanx.report.trackers import PictureTracker, PostponedError, Run, Tracker
from phalanx.system.disk import write_atomically
from phalanx.system.errors import describe_error

log = logging.getLogger('phalanx')

RANKS_SHOWN = 16  # on the terminal; the page shows all
COLUMNS = {  # format of each value in a log line, at a fixed width
    'epoch': 'epoch {:6.2f}',
    'loss': 'loss {:#7.4g}',
    'lr': 'lr {:.2e}',
    'samples_per_s': '{:8.1f} samples/s',
    'data_wait': 'data wait {:6.1%}',
    'bucket_mb_per_s': 'bucket {:6.1f} MB/s',
    'bucket_hits': 'cached {:6.1%}',
    'bucket_retries': 'repeated requests {:.0f}',
    'memory_mb': '{:7,.0f} MiB',
}
NO_LABELS = 'the {} have no valid labels (all pixels void, nothing annotated?); `phalanx data check` counts them'
AS_TRAINED = 'eval as trained'  # the group of metrics of the weights without EMA
BAR = {'loss': 'loss {:.4f}', 'lr': 'lr {:.1e}', 'samples_per_s': '{:.1f} samples/s', 'data_wait': 'wait {:.0%}'}


Callback = Callable[[Mapping[str, Any]], None]  # gets an event with its `kind`


class Report:
    """Report of the progress of a run to people and files. Failed writes (a full disk, say) are counted; the run continues.

    Use it as a context manager: however the run ends, the terminal is restored and the page is up to date. `callback` gets each
    line of metrics.jsonl and journal.jsonl, and the summary as kind `end`, once it is in its file. `trackers` are builders by
    name; `config`, the resolved recipe, is passed to them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        place: Path | None = None,
        main: bool,
        name: str,
        total_steps: int,
        config: Mapping[str, Any] | None = None,
        trackers: Mapping[str, Callable[[], Tracker]] | None = None,
        callback: Callback | None = None,
        console: Console | None = None,
    ) -> None:
        self.folder, self.main, self.name, self.total_steps = folder, main, name, total_steps
        self.place = place or folder
        self._callback = callback or (lambda event: None)
        self.step, self._begun_at = 0, -1  # `_begun_at`: step up to which earlier lines are kept
        self.not_written: Counter[str] = Counter()
        self._files: dict[str, FileIO] = {}  # line files, each opened by its first line, or by `resume`
        self._config, self._builders = config or {}, trackers or {}
        self._trackers: dict[str, Tracker] | None = None  # by name, once they have started
        self._logged: dict[str, int] = {}  # last step logged by an earlier start, by group of values
        self._facts: Mapping[str, str] = {}
        self._samples: Sequence[Sequence[tuple[str, npt.NDArray[np.uint8]]]] = ()  # pictures for the trackers
        self._table: list[dict[str, str | float]] = []
        self._page_is_due = self._loss_was_nothing = False
        self._history, self._summarised = History(), 0  # the log so far, and its lines that curves.json covers
        self._builder = ThreadPoolExecutor(1, 'page')
        self._building: Future[None] | None = None  # the page, by the thread of `_builder`: training goes on meanwhile
        self._console = console or terminal()
        self._progress = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn('{task.fields[numbers]}', markup=False),
            TimeRemainingColumn(compact=True),
            TextColumn('left'),
            console=self._console,
            disable=not (main and self._console.is_interactive),  # without a bar it still estimates the time left
            expand=True,
            refresh_per_second=4,
            speed_estimate_period=600,
        )
        self._bar = self._progress.add_task('', total=total_steps or None, numbers='')
        if main:
            folder.mkdir(parents=True, exist_ok=True)

    # Start of the run.

    def resume(self, step: int) -> None:
        """Continue after `step`: remove later lines of metrics.jsonl, left by the interrupted run. Raises OSError."""
        self.step = self._begun_at = step
        self._progress.reset(self._bar, completed=step)
        if self.main:
            self._files['metrics.jsonl'] = self._opened('metrics.jsonl')

    def world(self, facts: Mapping[str, str], ranks: Sequence[Mapping[str, str | int]]) -> None:
        """Report the configuration of the run and its ranks, once."""
        self._facts = dict(facts)
        run = {'name': self.name, 'total_steps': self.total_steps, 'facts': dict(facts)}
        self._note_down({'kind': 'start', **run, 'ranks': [dict(rank) for rank in ranks]})
        self._say_pairs(facts)
        self._say_table([{key: str(value) for key, value in rank.items()} for rank in ranks[:RANKS_SHOWN]])
        self._start_trackers()
        if len(ranks) > RANKS_SHOWN:
            self._say(f'and {len(ranks) - RANKS_SHOWN} more ranks; {self.place / "report.html"} has all of them')

    def initial_weights(self, facts: Mapping[str, Any], rows: Sequence[Mapping[str, str | float]]) -> None:
        """Report the initial weights and how much of them was loaded: one row per part of the network."""
        self._note_down({'kind': 'weights', 'facts': dict(facts), 'rows': [dict(row) for row in rows]})
        self._say_pairs({f'weights {key}': str(value) for key, value in facts.items() if isinstance(value, str)})
        self._say_table(rows)

    # During the run.

    def train(self, record: Mapping[str, float]) -> None:
        """Report a log line: step, epoch, loss, loss/<term> ..., lr, samples_per_s, data_wait (share of time), memory_mb ..."""
        self.step = int(record['step'])
        # a loss of exactly 0 usually means labels that are all void
        if record['loss'] == 0 and not self._loss_was_nothing:
            self._loss_was_nothing = True
            self.warning(f'the loss is exactly 0, as if {NO_LABELS.format("training samples")}')
        # the record on disk nests the loss terms; trackers get the flat names
        terms = {key.removeprefix('loss/'): value for key, value in record.items() if key.startswith('loss/')}
        others = {key: value for key, value in record.items() if key not in ('step', 'epoch', 'loss') and key[:5] != 'loss/'}
        first = {'kind': 'train', 'step': self.step, 'epoch': record['epoch'], 'loss': record['loss']}
        self._append('metrics.jsonl', {**first, 'terms': terms, **others})
        self._track('train', {key: value for key, value in record.items() if key != 'step'})
        self._progress.update(self._bar, completed=self.step, total=self.total_steps or None, numbers=_brief(record))
        self._progress.start()  # no effect without a terminal, or if already started
        # the line on the terminal, or in the log if the terminal has the bar
        left = self._progress.tasks[0].time_remaining
        numbers = [_column(key, value) for key, value in record.items() if key != 'step']
        line = '  '.join([self._at(), *numbers, *([f'{format_duration(left)} left'] if left is not None else [])])
        if self._progress.disable:
            self._say(line)
        else:
            log.info(line)  # the terminal has the bar instead

    def evaluation(self, step: int, found: Evaluation, *, best: bool, raw: Mapping[str, float] | None = None) -> None:
        """Report the metrics of the model after `step`, with a table, printed only at the end, and figures.

        `raw`: metrics of the weights as trained, if `found` are those of their EMA.
        """
        # warnings first: samples without results, slow ranks, undefined metrics
        for why in found.missed.values():
            self.warning(f'not evaluated: {why}')
        for rank in found.slow:
            self.warning(rank)
        if undefined := [name for name, value in found.metrics.items() if math.isnan(value)]:
            self.warning(f'{", ".join(undefined)}: undefined, as {NO_LABELS.format("evaluation samples")}')
        self.step, self._table = step, [dict(row) for row in found.table]
        # records and trackers
        self._show(found.figures)
        facts = {'samples': found.samples, 'seconds': found.seconds, **({'raw': raw} if raw else {})}
        self._append('metrics.jsonl', {'kind': 'eval', 'step': step, **found.metrics, **facts})
        self._track('eval', found.metrics)
        self._track(AS_TRAINED, raw or {})
        # the line on the terminal
        line = Text(f'{self._at()}  evaluated', style='cyan')
        line.append(''.join(f'  {name} {format_number(value)}' for name, value in found.metrics.items()), style='bold')
        line.append(f'  {pluralize(found.samples, "sample")} in {format_duration(found.seconds)}', style='dim')
        self._say(line.append('  best so far', style='bold green') if best else line)
        if raw:
            scores = ''.join(f'  {name} {format_number(value)}' for name, value in raw.items())
            self._say(Text(f'{self._at()}  as trained, without the EMA{scores}', style='dim'))
        # the table and plots of the page, which a resumed run shows before its first evaluation
        self._await_page()
        if self.main:
            with self._tolerating('table.json'):
                figures = save_figures(found.figures, self.folder)
                write_atomically(self.folder / 'table.json', _json({'step': step, 'rows': self._table, 'figures': figures}))
        self._build_page()

    def pictures(self, rows: Sequence[Sequence[tuple[str, npt.NDArray[np.uint8]]]]) -> None:
        """Keep the latest grid of captioned pictures ([H, W, 3] RGB) for the page."""
        if not self.main:
            return
        self._samples = rows
        self._await_page()
        with self._tolerating('pictures'):
            (self.folder / 'pictures').mkdir(exist_ok=True)
            index = [save_pictures(cells, self.folder, f'{row:02}_') for row, cells in enumerate(rows)]
            write_atomically(self.folder / 'pictures' / 'index.json', _json(index))

    def note(self, text: str) -> None:
        """Report a fact that the user should know."""
        self._note_down({'kind': 'note', 'text': text})
        self._say(text)

    def warning(self, text: str) -> None:
        """Report a problem that the user should look into."""
        self._note_down({'kind': 'warning', 'text': text})
        self._say(Text.assemble(('warning: ', 'bold yellow'), text), logging.WARNING)

    def saved(self, step: int, path: Path, seconds: float, in_steps: float) -> None:
        """Report that the checkpoint of `step` is on disk; training may have continued meanwhile.

        `in_steps`: seconds that all starts spent in the steps that it contains, without waits for data.
        """
        self.step = max(self.step, step)
        self._note_down({'kind': 'saved', 'path': str(path), 'seconds': seconds, 'in_steps': in_steps})
        self._say(Text(f'{self._at()}  saved {self.name_of(path)} in {format_duration(seconds)}', style='dim'))

    def name_of(self, checkpoint: Path) -> str:
        """Return a checkpoint as users name it: that of a run in a bucket is not where they look for it."""
        is_ours = self.place != self.folder and checkpoint.is_relative_to(self.folder)
        return f'{checkpoint.name} of {self.place}' if is_ours else str(checkpoint)

    # End of the run.

    def finish(self, summary: Mapping[str, Any], options: str = '') -> None:
        """Print the result and the next commands, with `options`; write summary.json and the page.

        Raises OSError if the summary cannot be written.
        """
        self._progress.stop()
        self._say_table(self._table)
        words = _result(summary)
        if self.not_written:
            words['not written'] = ', '.join(f'{times} x {what}' for what, times in self.not_written.items())
        run = quote(str(self.place))
        then = f'phalanx predict {run} IMAGES{options}; phalanx export {run}{options}; phalanx serve {run}'
        self._say_pairs({**words, 'report': str(self.place / 'report.html'), 'next': then})
        if self.main:
            write_atomically(self.folder / 'summary.json', _json(summary, indent=1))
        self._build_page()
        self._await_page()
        if self.main:
            self._callback({'kind': 'end', **summary})
        self._finish_trackers(summary)

    def close(self) -> None:
        """Restore the terminal, close the files, and update the page if needed."""
        self._progress.stop()
        self._finish_trackers(None)
        if self._page_is_due:
            self._build_page()
        self._await_page()
        self._builder.shutdown()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.main and isinstance(error, Exception):  # also in the files: the terminal may be gone
            failed = f'the run failed: {describe_error(error) or type(error).__name__}'
            self._note_down({'kind': 'warning', 'text': failed})
            log.error('%s', failed)
        self.close()

    # Output to the log of each rank, and to the console by the main rank.

    def _say(self, line: str | Text, level: int = logging.INFO) -> None:
        log.log(level, '%s', line)
        if self.main:
            with self._tolerating('output'):
                self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _say_pairs(self, pairs: Mapping[str, str]) -> None:
        for line in align(pairs):
            self._say(line)

    def _say_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self.main and rows:
            with self._tolerating('output'):
                self._console.print(make_table(rows))

    def _at(self) -> str:
        """Current step, aligned to the width of the last one."""
        total = str(self.total_steps) if self.total_steps else ''
        return f'step {self.step:>{len(total)}}' + (f'/{total}' if total else '')

    # Files, on the main rank.

    def _note_down(self, event: Mapping[str, Any]) -> None:
        self._append('journal.jsonl', {**event, 'step': self.step, 'time': time.time()})

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        if not self.main:
            return
        self._page_is_due = True
        with self._tolerating(name):
            if name not in self._files:
                self._files[name] = self._opened(name)
            _add_whole(self._files[name], _json(line))
            if name == 'metrics.jsonl':
                self._history.add(make_finite(line))
        self._callback(line)

    def _opened(self, name: str) -> FileIO:
        """Open a file for appending. The journal only grows; metrics keep the lines up to the step of a resume, or start
        empty.
        """
        path = self.folder / name
        if name == 'metrics.jsonl' and path.is_file():
            self._history = History.read(self.folder)
            evaluations = self._history.evaluations
            last = {'train': self._history.last, 'eval': evaluations[-1] if evaluations else {}}
            self._logged = {kind: line['step'] for kind, line in last.items() if line}
            self._logged |= {AS_TRAINED: self._logged['eval']} if any('raw' in line for line in evaluations) else {}
            with path.open('r+b') as file:
                file.truncate(self._history.cut(file, self._begun_at))
                os.fsync(file.fileno())
        return path.open('ab', buffering=0)

    # Trackers, on the main rank.

    def _start_trackers(self) -> None:
        """Build and start the trackers, once: a failed one may leave a thread behind."""
        if self._trackers is not None or not self.main:
            return
        self._trackers = {}
        if 'metrics.jsonl' not in self._files:  # what an earlier start logged
            with self._tolerating('metrics.jsonl'):
                self._files['metrics.jsonl'] = self._opened('metrics.jsonl')
        run = Run(self.name, self.folder, self._config, max(0, self._begun_at), self._logged, self._facts)
        for name, build in self._builders.items():
            with self._tolerating(f'tracker {name}', Exception):
                tracker = build()
                tracker.start(run)
                self._trackers[name] = tracker

    def _track(self, group: str, values: Mapping[str, float]) -> None:
        self._start_trackers()
        for name, tracker in (self._trackers or {}).items():
            with self._tolerating(f'tracker {name}', Exception):
                tracker.log(self.step, {f'{group}/{key}': value for key, value in values.items()})

    def _picture_trackers(self) -> dict[str, PictureTracker]:
        self._start_trackers()
        return {name: tracker for name, tracker in (self._trackers or {}).items() if isinstance(tracker, PictureTracker)}

    def _show(self, figures: Sequence[Figure]) -> None:
        """Pass the pictures of an evaluation to the trackers, before its values: a tracker sends both together."""
        rows, self._samples = self._samples, ()
        if not (trackers := self._picture_trackers()):
            return
        from phalanx.report.plots import draw_figures, name_rows  # not before a start: it imports the search for fonts

        pictures = {**dict(name_rows(rows)), **draw_figures(figures)}
        for name, tracker in trackers.items() if pictures else ():
            with self._tolerating(f'tracker {name}', Exception):
                tracker.show(self.step, pictures)

    def _finish_trackers(self, summary: Mapping[str, Any] | None) -> None:
        trackers, self._trackers = self._trackers or {}, {}
        for name, tracker in trackers.items():
            with self._tolerating(f'tracker {name}', Exception):
                tracker.finish(summary)

    def _build_page(self) -> None:
        if self.main:
            self._await_page()
            self._page_is_due = False
            summary = None
            if self._history.lines >= self._summarised + SUMMARISED:
                with self._tolerating('curves.json'), (self.folder / 'metrics.jsonl').open('rb') as file:
                    summary, self._summarised = self._history.summary(file), self._history.lines
            self._building = self._builder.submit(_write_page, self.folder, self._history.log(), summary)

    def _await_page(self) -> None:
        """Wait for the page that is being built, if there is one; warn if it could not be written."""
        building, self._building = self._building, None
        if building is not None:
            with self._tolerating('report.html'):
                building.result()

    @contextlib.contextmanager
    def _tolerating(self, what: str, kind: type[Exception] = OSError) -> Iterator[None]:
        """Context that tolerates failures to write `what`: warns the first time, counts always."""
        try:
            yield
        except PostponedError as error:
            self.warning(f'{what}: {error} (the run continues; the values are in metrics.jsonl and will be sent)')
        except kind as error:
            self.not_written[what] += 1
            if self.not_written[what] == 1:
                reason = (error.strerror if isinstance(error, OSError) else None) or f'{type(error).__name__}: {error}'
                self.warning(f'{what} could not be written ({reason}); the run continues without it')


def _write_page(folder: Path, content: Log, summary: Mapping[str, Any] | None) -> None:
    """Write the page of a run and, if it is due, the summary of its log. Raises OSError."""
    if summary is not None:
        write_summary(folder, summary)
    write_page(folder, content)


def _add_whole(file: FileIO, line: bytes) -> None:
    """Append a line completely or not at all. Raises OSError if the disk is full; the file is then unchanged."""
    end = file.seek(0, os.SEEK_END)
    try:
        while line:
            line = line[file.write(line) :]  # a full disk may write a part without an error
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise


def _json(value: object, indent: int | None = None) -> bytes:
    """Return a line (or an indented text) of JSON; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(make_finite(value), allow_nan=False, indent=indent).encode() + b'\n'


def _column(key: str, value: float) -> str:
    return COLUMNS[key].format(value) if key in COLUMNS else f'{key.removeprefix("loss/")} {value:#7.4g}'


def _brief(record: Mapping[str, float]) -> str:
    """Return the values that fit beside the progress bar."""
    return '  '.join(BAR[key].format(record[key]) for key in BAR if key in record)


def _result(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the summary of a run in words."""
    main_metric, skipped = summary.get('main_metric'), summary.get('skipped_samples', [])
    words = {name: format_number(value) for name, value in summary.get('metrics', {}).items()}
    if summary.get('best') is not None:
        words[f'best {main_metric}'] = f'{format_number(summary["best"])} at step {summary["best_step"]}'
    if summary.get('start') is not None:
        words[f'{main_metric} at the start'] = format_number(summary['start'])
    if gains := summary.get('since_start'):
        words['best against start'] = ', '.join(f'{name} {gain:+.4f}' for name, gain in gains.items())
    epochs = f' ({summary["epochs"]:.2f} epochs)' if 'epochs' in summary else ''
    words |= {
        'steps': format_number(summary.get('steps')) + epochs,
        'world size': format_number(summary.get('world_size')),
        'time': format_duration(summary.get('seconds')),
        'samples/s': format_number(summary.get('samples_per_s')),
        'data wait': f'{format_percent(summary.get("data_wait"))} of the training time',
        'peak memory': format_mebibytes(summary.get('peak_memory_mb')),
    }
    if (counts := summary.get('buckets')) and counts['ahead']:
        cached = f'{format_percent(counts["hits"] / max(counts["asked"], 1))} of {counts["asked"]:,} files were in the cache'
        words['bucket'] = f'{counts["bytes"] / 1e6:,.1f} MB by the first node, {cached}, {counts["retries"]} requests repeated'
    words |= {'skipped samples': format_number(len(skipped))} if skipped else {}
    return words | {f'note {place}': text for place, text in enumerate(summary.get('differs', ()), 1)}
