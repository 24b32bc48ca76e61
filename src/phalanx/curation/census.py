"""Census of a data set, from one pass over all samples: class counts, image sizes, problems and duplicates."""

import hashlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from phalanx.data.image import file_bit_depth, file_orientation
from phalanx.data.samples import SampleError, Split
from phalanx.engine.loader import limit_to_one_core
from phalanx.families.curated import Survey, Surveyed
from phalanx.report.readable import pluralize

SPLITS: tuple[Split, ...] = ('train', 'eval')
Size = tuple[int, int]  # (width, height)
BATCH = 8  # samples that a worker reads at a time
KINDS_SHOWN = 40  # kinds per name in brackets, such as characters that are not in the dictionary


@dataclass(frozen=True)
class SampleFacts:
    """Size, class counts and image facts of one sample."""

    index: int
    size: Size
    digest: bytes  # of the decoded image, so that equal pictures in different files have equal digests
    counts: Mapping[str, int]
    is_turned: bool  # by EXIF data
    depth: int  # bits of its values in the file


@dataclass(frozen=True)
class Problem:
    """Sample or split that cannot be used, with the message of the error."""

    split: Split
    name: str  # of the sample; empty when the whole split cannot be opened
    text: str

    @property
    def reason(self) -> str:
        """Message without the path in front: equal problems of different files have one reason."""
        return self.text.partition(': ')[2] or self.text


@dataclass
class SplitCensus:
    """Totals of one split."""

    samples: int  # in the data set
    indices: list[int] = field(default_factory=list)  # those that could be read
    units: Counter[str] = field(default_factory=Counter)  # by class
    images: Counter[str] = field(default_factory=Counter)  # that have the class in them
    sizes: Counter[Size] = field(default_factory=Counter)
    turned: int = 0  # images that EXIF data turned
    depths: Counter[int] = field(default_factory=Counter)  # bits of values
    first: dict[Size, int] = field(default_factory=dict)  # of each size the first sample

    def add(self, seen: SampleFacts) -> None:
        self.indices.append(seen.index)
        self.sizes[seen.size] += 1
        self.first.setdefault(seen.size, seen.index)
        self.turned += seen.is_turned
        self.depths[seen.depth] += 1
        self.units.update(seen.counts)
        self.images.update(name for name, count in seen.counts.items() if count)

    def remark(self, name: str, unit: str) -> str:
        """Count of samples, or of units and their kinds, for a name in brackets; empty if there are none."""
        kinds = sorted((kind for kind in self.units if kind.startswith(f'{name} ')), key=lambda kind: -self.units[kind])
        if kinds:
            shown = ' '.join(kind.removeprefix(f'{name} ') for kind in kinds[:KINDS_SHOWN])
            count = sum(self.units[kind] for kind in kinds)
            return f'{count:,} {unit} {name}, {pluralize(len(kinds), "kind")}, the most frequent {shown}'
        return f'{pluralize(self.images[name], "sample")} {name}' if self.images[name] else ''


@dataclass
class Census:
    """Census of all splits of a data set."""

    surveys: dict[Split, Survey]
    splits: dict[Split, SplitCensus]
    problems: list[Problem]
    duplicates: list[list[tuple[Split, str]]]  # groups of samples (split, name) whose images are equal
    contradictions: list[list[tuple[Split, str]]] = field(default_factory=list)  # those whose annotations count differently

    @property
    def unit(self) -> str:
        return next((survey.unit for survey in self.surveys.values()), '')

    def class_names(self) -> list[str]:
        """Classes of the recipe in order, then other names that occur, the most frequent first."""
        expected = list(dict.fromkeys(name for survey in self.surveys.values() for name in survey.class_names))
        found = sum((split.units for split in self.splits.values()), Counter[str]())
        return expected + [name for name, _ in found.most_common() if name not in expected]

    def read(self) -> int:
        return sum(len(split.indices) for split in self.splits.values())

    def reasons(self) -> list[tuple[str, int, Problem]]:
        """(reason, count, first problem) of each kind of problem, the most frequent first."""
        first: dict[str, Problem] = {}
        for problem in self.problems:
            first.setdefault(problem.reason, problem)
        counts = Counter(problem.reason for problem in self.problems)
        return [(reason, count, first[reason]) for reason, count in counts.most_common()]

    def remarks(self) -> list[str]:
        """Notes about what is not an error but deserves a look."""
        keeping = '; data.bands uses all' if any(hasattr(survey, 'bands') for survey in self.surveys.values()) else ''
        # notes of the readers, and properties of images that are easily overlooked
        remarks = [f'{split}: {note}' for split, survey in self.surveys.items() for note in survey.notes]
        remarks += [
            f'{name}: {pluralize(split.turned, "image is", "images are")} turned by EXIF data; annotate them upright'
            for name, split in self.splits.items()
            if split.turned
        ]
        remarks += [
            f'{name}: {pluralize(images, "image has", "images have")} values of {bits} bits; the upper 8 are used{keeping}'
            for name, split in self.splits.items()
            for bits, images in sorted(split.depths.items())
            if bits > 8 and not getattr(self.surveys.get(name), 'bands', None)
        ]
        remarks += [
            # labels in brackets, such as (unknown characters), with the fix that the family suggests
            f'{split}: {found}: {cure}'
            for split, part in self.splits.items()
            if split in self.surveys
            for name, cure in self.surveys[split].cures.items()
            if (found := part.remark(name, self.unit))
        ]
        # classes without samples: never learned, or never measured
        trained = self.splits.get('train')
        expected = self.surveys['train'].class_names if trained else ()
        if trained and (absent := [name for name in expected if not trained.units[name]]):
            other = [
                f'{count / trained.units.total():.0%} of the {self.unit} are {name}'
                for name, count in trained.units.items()
                if name not in expected
            ]
            instead = f' ({", ".join(other)})' if other else ''
            cure = f'; {self.surveys["train"].when_absent}' if other and self.surveys['train'].when_absent else ''
            remarks.append(f'never in the training samples: {", ".join(absent)}{instead}{cure}')
        if (evaluated := self.splits.get('eval')) and trained:
            missing = [name for name in expected if trained.units[name] and not evaluated.units[name]]
            remarks += [f'never in the evaluation samples, so not evaluated: {", ".join(missing)}'] if missing else []
        # the same image in both splits flatters the metric
        across = [group for group in self.duplicates if len({split for split, _ in group}) > 1]
        if across:
            remarks.append(f'images both among the training and the evaluation samples: {len(across)}')
        if len(across) < len(self.duplicates):
            remarks.append(f'images several times within a split: {len(self.duplicates) - len(across)}')
        if self.contradictions:
            alike = ' and '.join(dict.fromkeys(name for _, name in self.contradictions[0][:2]))
            remarks.append(f'equal images with different annotations: {len(self.contradictions)}, such as {alike}')
        return remarks

    def record(self) -> dict[str, Any]:
        """The census as JSON."""
        return {
            'samples': {name: {'all': split.samples, 'read': len(split.indices)} for name, split in self.splits.items()},
            'unit': self.unit,
            'classes': [
                {'class': name}
                | {split: {self.unit: part.units[name], 'images': part.images[name]} for split, part in self.splits.items()}
                for name in self.class_names()
            ],
            'sizes': {
                name: [{'width': w, 'height': h, 'samples': count} for (w, h), count in split.sizes.most_common()]
                for name, split in self.splits.items()
            },
            'problems': [{'split': found.split, 'sample': found.name, 'problem': found.text} for found in self.problems],
            'duplicates': [[{'split': split, 'sample': name} for split, name in group] for group in self.duplicates],
            'remarks': self.remarks(),
        }


def take_census(task: Surveyed, *, limit: int | None, workers: int, advance: Callable[[Split, int, int], None]) -> Census:
    """Read both splits, or `limit` samples spread evenly over each. `advance(split, done, total)` reports progress."""
    census = Census({}, {}, [], [])
    groups, annotations = dict[bytes, list[tuple[Split, str]]](), dict[bytes, set[int]]()
    for split in SPLITS:
        try:
            survey = task.survey(split)
        except (OSError, ValueError) as error:
            census.problems.append(Problem(split, '', f'{split}: {error}'))
            continue
        found_here = SplitCensus(len(survey))
        census.surveys[split], census.splits[split] = survey, found_here
        chosen = spread_evenly(len(survey), limit)
        for done, found in enumerate(_read_samples(survey, split, chosen, workers), 1):
            # one pass over the files serves counts, problems and duplicates
            if isinstance(found, Problem):
                census.problems.append(found)
            else:
                found_here.add(found)
                groups.setdefault(found.digest, []).append((split, survey.name(found.index)))
                annotations.setdefault(found.digest, set()).add(hash(frozenset(found.counts.items())))
            advance(split, done, len(chosen))
    census.duplicates = [group for group in groups.values() if len(group) > 1]
    census.contradictions = [groups[digest] for digest, kinds in annotations.items() if len(kinds) > 1]
    return census


def spread_evenly(size: int, limit: int | None) -> list[int]:
    """Return at most `limit` evenly spread numbers below `size`."""
    if limit is None or limit >= size:
        return list(range(size))
    return [number * size // limit for number in range(limit)]


def _read_samples(survey: Survey, split: Split, indices: Sequence[int], workers: int) -> Iterator[SampleFacts | Problem]:
    """Yield the facts or the problem of each sample, in order. To start a worker takes longer than to read a batch."""
    workers = min(workers, len(indices) // BATCH)
    loader: DataLoader[SampleFacts | Problem] = DataLoader(
        _SampleReader(survey, split),
        batch_size=BATCH,
        sampler=indices,
        collate_fn=list,
        num_workers=workers,
        worker_init_fn=_start_worker,
        prefetch_factor=4 if workers else None,
    )
    for found in loader:
        yield from found


@dataclass
class _SampleReader(Dataset[SampleFacts | Problem]):
    """Data set of sample facts, read in worker processes."""

    survey: Survey
    split: Split

    def __getitem__(self, index: int) -> SampleFacts | Problem:
        try:
            image, counts = self.survey.count(index)
        except SampleError as error:
            return Problem(self.split, self.survey.name(index), str(error))
        except Exception as error:  # of a plug-in
            error.add_note(f'while reading {self.survey.name(index)}')
            raise
        digest = hashlib.blake2b(np.ascontiguousarray(image).data, key=repr(image.shape).encode(), digest_size=16).digest()
        file = Path(self.survey.name(index))
        is_turned = file_orientation(file) != 1
        return SampleFacts(index, (image.shape[1], image.shape[0]), digest, counts, is_turned, file_bit_depth(file))


def _start_worker(number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends its workers
    limit_to_one_core()
