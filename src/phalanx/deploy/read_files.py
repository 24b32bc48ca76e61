"""Reading of many pages: in several processes, continued after a stop, summarised in a page.

OUT/reading.jsonl   one line for each finished page, appended as pages finish
OUT/reading.html    the summary, the least certain pages first
"""

import hashlib
import json
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.progress import track

import phalanx
from phalanx.data.image import Pages
from phalanx.data.samples import SampleError
from phalanx.deploy.pages import WRITERS
from phalanx.deploy.read import Reader
from phalanx.report.page import render
from phalanx.report.readable import pluralize
from phalanx.runtime.prepare import MAX_SIDE
from phalanx.system.disk import write_atomically
from phalanx.system.errors import describe_error

JOURNAL, SUMMARY = 'reading.jsonl', 'reading.html'
AHEAD = 4  # pages per process that are read or wait for it
DOUBTFUL = 5  # least certain pages in the message


@dataclass(frozen=True)
class Options:
    """Options of `phalanx read` that its processes need."""

    det: str | None = None
    rec: str | None = None
    language: str | None = None
    threshold: float = 0.5
    upside_down: bool = False
    max_side: int = MAX_SIDE
    device: str = 'auto'
    threads: int = 0
    save: tuple[str, ...] = ()

    def reader(self) -> Reader:
        return Reader(**{name: value for name, value in asdict(self).items() if name != 'save'})


open_reader = cache(Options.reader)  # once per process


@dataclass(frozen=True)
class Page:
    """Page to read."""

    file: Path
    number: int  # in the file, from 0
    name: str  # for messages
    out: Path  # folder of the results
    stem: str  # of the results, below `out`


@dataclass(frozen=True)
class ReadPage:
    """Finished page, a line of the journal."""

    key: str  # hash of content, place and settings
    page: str  # the stem of its results
    source: str
    lines: int
    confidence: float | None  # mean of its lines; None without lines
    least: str  # text of the least certain line
    files: tuple[str, ...]  # written, below the folder of the results


def read_files(options: Options, files: dict[Path, Path], out: Path, workers: int = 1) -> tuple[list[ReadPage], int, int]:
    """Read `files`, written below `out` at the paths that they map to; pages that `out` has already are not read again.

    A page is there already if a journal line has the hash of its content, models and options, and its files exist. Returns the
    pages, the number of those that were there, and the number of failures. The summary is written also when a signal stops the
    reading.
    """
    # Everything besides its pixels that the result of a page depends on.
    settings = json.dumps([phalanx.__version__, open_reader(options).identity, options.save])
    out.mkdir(parents=True, exist_ok=True)
    known = read_journal(out / JOURNAL)
    done: list[ReadPage] = []
    failures: list[str] = []
    keys: dict[Page, str] = {}
    reused = 0

    def fail(message: str) -> None:
        print(f'skipped: {message}', file=sys.stderr)
        failures.append(message)

    def unread() -> Iterator[Page]:
        nonlocal reused
        for file, stem in track(files.items(), 'reading', console=Console(stderr=True), transient=True):
            try:
                pages = _open_pages(file)
            except (SampleError, OSError) as error:
                fail(describe_error(error))
                continue
            content, several = pages.content_hash(), len(pages) > 1
            for number in range(len(pages)):
                own = stem.with_name(f'{stem.name}-p{number + 1:04}') if several else stem
                page = Page(file, number, f'{file}, page {number + 1}' if several else str(file), out, str(own))
                keys[page] = hashlib.sha256(f'{content} {number} {own} {settings}'.encode()).hexdigest()
                row = known.get(keys[page])
                if row is not None and all((out / name).is_file() for name in row.files):
                    reused += 1
                    done.append(row)
                else:
                    yield page

    try:
        with (out / JOURNAL).open('a', encoding='utf-8') as journal:
            if journal.tell():
                journal.write('\n')  # a stop may have cut off the last line
            for page, result in results_of(partial(read_page, options), unread(), workers):
                if isinstance(result, str):
                    fail(result)
                    continue
                done.append(ReadPage(key=keys.pop(page), **result))
                journal.write(f'{json.dumps(asdict(done[-1]), ensure_ascii=False)}\n')
                journal.flush()  # so that a killed reading loses no finished page
    finally:
        write_summary(out, done, failures)
    return done, reused, len(failures)


def read_page(options: Options, page: Page) -> dict[str, Any] | str:
    """Read a page and write its results; returns the fields of its ReadPage but `key`, or a message why it failed."""
    try:
        image = _open_pages(page.file).read(page.number)
        lines = open_reader(options)(image)
        stem = page.out / page.stem
        stem.parent.mkdir(parents=True, exist_ok=True)
        files = WRITERS.write(lines, image, stem, options.save)
    except SampleError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a page does to a decoder, a network or a disk, the others go on
        return f'{page.name}: {describe_error(error) or type(error).__name__}'
    confidences = [line.confidence for line in lines]
    return {
        'page': page.stem,
        'source': page.name,
        'lines': len(lines),
        'confidence': sum(confidences) / len(lines) if lines else None,
        'least': min(lines, key=lambda line: line.confidence).text if lines else '',
        'files': tuple(str(file.relative_to(page.out)) for file in files),
    }


@lru_cache(maxsize=1)
def _open_pages(file: Path) -> Pages:
    return Pages(file)


def results_of(
    work: Callable[[Page], dict[str, Any] | str], pages: Iterator[Page], workers: int
) -> Iterator[tuple[Page, dict[str, Any] | str]]:
    """(page, result of `work`) in the order of `pages`, with `workers` processes; with 1 in this process.

    Pages whose process died, for want of memory as a rule, are tried once more, each in a process of its own.
    """
    if workers == 1:
        yield from ((page, work(page)) for page in pages)
        return
    pool = _pool(workers)
    running = deque[tuple[Page, Future[dict[str, Any] | str]]]()
    is_broken = False

    def submit(page: Page) -> Future[dict[str, Any] | str]:
        try:
            return pool.submit(work, page)
        except BrokenProcessPool as error:  # as if it had been submitted before
            failure = Future[dict[str, Any] | str]()
            failure.set_exception(error)
            return failure

    try:
        # A window slides over the pages: when its first one is finished the next is submitted, so no process waits for the
        # others, and neither pages nor results fill the memory.
        running.extend((page, submit(page)) for page in islice(pages, AHEAD * workers))
        while running:
            page, future = running.popleft()
            try:
                result = future.result()
            except BrokenProcessPool:  # all pages in the window fail with the one whose process died
                is_broken, result = True, _read_alone(work, page)
            yield page, result
            if is_broken and not running:
                pool, is_broken = _pool(workers), False
            if not is_broken:
                running.extend((page, submit(page)) for page in islice(pages, AHEAD * workers - len(running)))
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(workers: int) -> ProcessPoolExecutor:
    """Pool of fresh processes that leave Ctrl-C to this one."""
    ignore = (signal.SIGINT, signal.SIG_IGN)
    return ProcessPoolExecutor(workers, get_context('spawn'), initializer=signal.signal, initargs=ignore)


def _read_alone(work: Callable[[Page], dict[str, Any] | str], page: Page) -> dict[str, Any] | str:
    with _pool(1) as pool:
        try:
            return pool.submit(work, page).result()
        except BrokenProcessPool:
            return f'{page.name}: the process that read it was killed (out of memory?); a smaller --max_side needs less'


def read_journal(file: Path) -> dict[str, ReadPage]:
    """Finished pages by key; lines that are torn or of another version are left out."""
    pages = {}
    for line in file.read_text(encoding='utf-8', errors='replace').splitlines() if file.is_file() else ():
        try:
            row = ReadPage(**json.loads(line))
        except (ValueError, TypeError):
            continue
        pages[row.key] = row
    return pages


def least_certain(pages: Sequence[ReadPage]) -> list[tuple[float, ReadPage]]:
    """Confidence and page of all pages with text, the lowest first."""
    return sorted(((page.confidence, page) for page in pages if page.confidence is not None), key=lambda pair: pair[0])


def mean_confidence(pages: Sequence[ReadPage]) -> float | None:
    """Mean over all lines of all pages; None without lines."""
    lines = sum(page.lines for page in pages)
    return sum(page.lines * (page.confidence or 0.0) for page in pages) / lines if lines else None


def describe_pages(pages: Sequence[ReadPage]) -> str:
    """Lines, pages, mean confidence and the least certain pages."""
    mean, doubtful = mean_confidence(pages), least_certain(pages)[:DOUBTFUL] if len(pages) > DOUBTFUL else ()
    counts = f'{pluralize(sum(page.lines for page in pages), "line")} on {pluralize(len(pages), "page")}'
    least = ', '.join(f'{page.page} ({confidence:.3f})' for confidence, page in doubtful)
    return (
        counts + (f', mean confidence {mean:.3f}' if mean is not None else '') + (f'; least certain: {least}' if least else '')
    )


def write_summary(out: Path, pages: Sequence[ReadPage], failures: Sequence[str]) -> None:
    """Write OUT/reading.html: counts, failures, and a table of all pages with links to their results."""
    mean, empty = mean_confidence(pages), [(None, page) for page in pages if page.confidence is None]
    page = render(
        'reading.html',
        {
            'title': f'Texts in {out.name}',
            'tiles': [
                ('pages', f'{len(pages):,}', f'{len(empty):,} without text'),
                ('lines', f'{sum(page.lines for page in pages):,}', ''),
                ('mean confidence', '' if mean is None else f'{mean:.3f}', 'of the lines'),
                ('failed', f'{len(failures):,}', 'files and pages'),
            ],
            'failures': failures,
            'pages': [
                (confidence, page, [(Path(file).suffix, quote(file)) for file in page.files])
                for confidence, page in [*least_certain(pages), *empty]
            ],
        },
    )
    write_atomically(out / SUMMARY, page.encode())
