"""Reading of many pages: in several processes, continued after a stop, summarised in a page.

OUT/reading.jsonl   one line for each finished page, appended as pages finish
OUT/reading.html    the summary, the least certain pages first

Each page has files of its own; hOCR and PDF files of the pages of one file are merged when all of them are read.
"""

import errno
import hashlib
import json
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import quote

import phalanx
from phalanx.data.image import Pages
from phalanx.data.samples import SampleError
from phalanx.deploy.documents import MERGERS, merge_pages, remove_parts
from phalanx.deploy.inputs import picture_file
from phalanx.deploy.pages import WRITERS
from phalanx.deploy.read import Reader
from phalanx.deploy.tables import TableReader, write_tables
from phalanx.report.page import render
from phalanx.report.readable import MISSING, pluralize
from phalanx.report.terminal import track
from phalanx.runtime.prepare import MAX_SIDE
from phalanx.system.disk import write_atomically
from phalanx.system.errors import describe_error

JOURNAL, SUMMARY = 'reading.jsonl', 'reading.html'
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # errors of a disk that takes no files
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
    use_textline_orientation: bool = False
    cls: str | None = None
    max_side: int = MAX_SIDE
    device: str = 'auto'
    threads: int = 0
    save: tuple[str, ...] = ()
    tables: bool = False
    layout: str | None = None
    table: str | None = None

    def reader(self) -> Reader:
        own = {'save', 'tables', 'layout', 'table'}
        return Reader(**{name: value for name, value in asdict(self).items() if name not in own})

    def table_reader(self) -> TableReader | None:
        return TableReader(self.layout, self.table, device=self.device, threads=self.threads) if self.tables else None


# once per process
open_reader, open_tables = cache(Options.reader), cache(Options.table_reader)


@dataclass(frozen=True)
class Page:
    """Page to read."""

    file: Path
    number: int  # in the file, from 0
    name: str  # for messages
    out: Path  # folder of the results
    stem: str  # of the results, below `out`
    key: str = ''  # as in ReadPage
    document: str = ''  # stem of the results of the whole file, if it has several pages


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
    tables: int = 0


def read_files(options: Options, files: dict[Path, Path], out: Path, workers: int = 1) -> tuple[list[ReadPage], int, int]:
    """Read `files`, written below `out` at the paths that they map to; pages that `out` has already are not read again.

    A page is there already if a journal line has the hash of its content, models and options, and its files exist. Returns the
    pages, the number of those that were there, and the number of failures. The summary is written also when a signal stops the
    reading.
    """
    settings = settings_of(options)
    out.mkdir(parents=True, exist_ok=True)
    known = read_journal(out / JOURNAL)
    done: dict[str, ReadPage] = {}  # by the stems of their results
    documents: dict[str, list[Page]] = {}
    failures: list[str] = []
    reused = 0

    def fail(message: str) -> None:
        print(f'skipped: {message}', file=sys.stderr)
        failures.append(message)

    def unread() -> Iterator[Page]:
        nonlocal reused
        for file, stem in track(files.items(), 'reading'):
            try:
                pages = list_pages(file, stem, out, settings)
            except (SampleError, OSError) as error:
                fail(describe_error(error))
                continue
            if len(pages) > 1:
                documents[pages[0].document] = pages
            rows = find_read(out, pages, known)
            reused += len(rows)
            done.update(rows)
            yield from (page for page in pages if page.stem not in rows)

    with (out / JOURNAL).open('a', encoding='utf-8') as journal:
        if journal.tell():
            journal.write('\n')  # a stop may have cut off the last line

        def record(rows: Sequence[ReadPage]) -> None:
            done.update({row.page: row for row in rows})
            journal.writelines(f'{json.dumps(asdict(row), ensure_ascii=False)}\n' for row in rows)
            journal.flush()  # so that a killed reading loses no finished page

        def merge_if_complete(document: str) -> None:
            rows = [done[page.stem] for page in documents.get(document, ()) if page.stem in done]
            if len(rows) < len(documents.get(document, ())):
                return
            before = [tuple(row.files) for row in rows]
            try:
                after = merge_pages(out, document, before)
            except Exception as error:  # noqa: BLE001 - the pages have files of their own, and the others go on
                fail(f'{document}: the files of its pages cannot be merged: {describe_error(error) or type(error).__name__}')
                return
            if after != before:
                record([replace(row, files=files) for row, files in zip(rows, after, strict=True)])
                remove_parts(out, before, after)

        try:
            for page, result in results_of(partial(read_page, options), unread(), workers):
                if isinstance(result, str):
                    fail(result)
                else:
                    record([ReadPage(key=page.key, **result)])
                    merge_if_complete(page.document)
            for document in documents:  # also those that a stop left unmerged
                merge_if_complete(document)
        finally:
            write_summary(out, list(done.values()), failures)
    return list(done.values()), reused, len(failures)


def settings_of(options: Options) -> str:
    """Everything besides its pixels that the result of a page depends on."""
    tables = open_tables(options)
    return json.dumps([phalanx.__version__, open_reader(options).identity, options.save, tables and tables.identity])


def list_pages(file: Path, stem: Path, out: Path, settings: str) -> list[Page]:
    """Pages in a file. Raises SampleError and OSError."""
    pages = _open_pages(file)
    content, found = pages.content_hash(), []
    for number in range(len(pages)):
        own, name, document = str(stem), str(file), ''
        if len(pages) > 1:
            own, name, document = f'{stem}-p{number + 1:04}', f'{file}, page {number + 1}', str(stem)
        key = hashlib.sha256(f'{content} {number} {own} {settings}'.encode()).hexdigest()
        found.append(Page(file, number, name, out, own, key, document))
    return found


def find_read(out: Path, pages: Sequence[Page], known: Mapping[str, ReadPage]) -> dict[str, ReadPage]:
    """Find the pages of a file that were read before and whose results exist, by the stems of the results.

    If their results were merged into files of the document, all pages or none: these files are written from all of them.
    """
    rows = {page.stem: known[page.key] for page in pages if page.key in known}
    there = {stem: row for stem, row in rows.items() if all((out / name).is_file() for name in row.files)}
    is_merged = any(f'{page.document}{ending}' in row.files for page in pages for ending in MERGERS for row in rows.values())
    return {} if is_merged and len(there) < len(pages) else there


def read_page(options: Options, page: Page) -> dict[str, Any] | str:
    """Read a page and write its results; returns the fields of its ReadPage but `key`, or a message why it failed.

    Raises OSError where the disk of the results is full.
    """
    try:
        image = _open_pages(page.file).read(page.number)
        lines = open_reader(options)(image)
        stem = page.out / page.stem
        stem.parent.mkdir(parents=True, exist_ok=True)
        files = WRITERS.write(lines, image, stem, options.save, picture_file(page.file, is_page=bool(page.document)))
        reader = open_tables(options)
        tables = reader(image, lines) if reader else []
        files += write_tables(tables, stem) if reader else []
    except SampleError as error:
        return str(error)
    except OSError as error:
        if error.errno in FULL:
            raise  # all further pages would be read for nothing
        return f'{page.name}: {describe_error(error)}'
    except Exception as error:  # noqa: BLE001 - whatever a page does to a decoder, a network or a disk, the others go on
        return f'{page.name}: {describe_error(error) or type(error).__name__}'
    confidences = [line.confidence for line in lines]
    return {
        'page': page.stem,
        'source': page.name,
        'lines': len(lines),
        'confidence': sum(confidences) / len(lines) if lines else None,
        'least': min(lines, key=lambda line: line.confidence).text if lines else '',
        'tables': len(tables),
        'files': tuple(str(file.relative_to(page.out)) for file in files),
    }


@lru_cache(maxsize=1)
def _open_pages(file: Path) -> Pages:
    return Pages(file, on_white=True)


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
    # not `splitlines`: a text may hold other ends of line, such as U+2028
    for line in file.read_text(encoding='utf-8', errors='replace').split('\n') if file.is_file() else ():
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
    tables = sum(page.tables for page in pages)
    found = f' and {pluralize(tables, "table")}' if tables else ''
    counts = f'{pluralize(sum(page.lines for page in pages), "line")}{found} on {pluralize(len(pages), "page")}'
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
                ('mean confidence', MISSING if mean is None else f'{mean:.3f}', 'of the lines'),
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
