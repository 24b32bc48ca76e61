"""Splits of the samples into training, validation and test sets."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from phalanx.curation.prepare.samples import SPLIT_NAMES, Sample, SplitName
from phalanx.report.readable import pluralize

ROBOFLOW = re.compile(r'(.+)\.rf\.[0-9A-Za-z]+$')  # augmented copies of one image
FOLDER = 'folder'
END = 4096  # bytes


def split_samples(
    samples: Sequence[Sample], val: float | None, seed: int, groups: str | None
) -> tuple[dict[SplitName, list[Sample]], str]:
    """Samples per split, and how they were split: as the annotations say, or at random if they do not or `val` is given.

    `val`: share of the validation set. A test set that the annotations give is kept in any case. Raises ValueError.
    """
    given: dict[SplitName, list[Sample]] = defaultdict(list)
    for sample in samples:
        given[sample.split or 'train'].append(sample)
    if not given['train']:  # all images in folders called test, say
        given = {'train': list(samples)}
    if 'val' in given and val is None:
        return {split: given[split] for split in SPLIT_NAMES if split in given}, 'as the annotations say'
    of_image = {sample.image: sample for sample in given['train'] + given.get('val', [])}  # some may be in both
    rest, test = [*of_image.values()], given.get('test', [])
    share = val or val_share(len(rest))
    train, held_out = deal(rest, [1 - share, share], seed, groups)
    lists: dict[SplitName, list[Sample]] = {'train': train, 'val': held_out, 'test': test}
    apart = '; the test images stay apart' if test else ''
    return (
        {split: chosen for split, chosen in lists.items() if chosen},
        f'at random (seed {seed}), {share:.0%} to evaluate with{apart}',
    )


def val_share(count: int) -> float:
    """Validation share of `count` images: a fifth, or 500 of many images, but at least a fiftieth."""
    return 0.2 if count <= 2500 else max(500 / count, 0.02)


def deal(samples: Sequence[Sample], shares: Sequence[float], seed: int, groups: str | None) -> list[list[Sample]]:
    """Split the samples into a list per share, stratified by label; groups stay together.

    Iterative stratification (Sechidis et al., ECML 2011), over groups of images: the rarest label first; each of its groups
    goes to the list that lacks most of it. Raises ValueError if a list would be empty.
    """
    members = list(group_samples(samples, groups).values())
    if len(members) < len(shares):
        if len(samples) == 1:
            raise ValueError(f'{samples[0].image}: is the only image with an annotation; training and validation need one each')
        groups_of = f'{pluralize(len(samples), "image")} in {pluralize(len(members), "group")}'
        alike = f'--groups {groups} puts them together' if groups else 'equal files stay together, and copies of an image'
        raise ValueError(f'{groups_of}, too few for {len(shares)} lists: {alike}')
    # totals per group and label, and the number of each label that each list should get
    counts = [Counter(label for sample in group for label in _labels_of(sample)) for group in members]
    rng = np.random.default_rng(seed)
    waiting = rng.permutation(len(members)).tolist()
    whole = Counter[str]()
    for count in counts:
        whole.update(count)
    lacking = [Counter({label: share * total for label, total in whole.items()}) for share in shares]
    room = [share * len(samples) for share in shares]
    places: dict[int, int] = {}
    # rare labels first: later ones can still balance the sizes of the lists
    for label, _ in sorted(whole.items(), key=lambda item: (item[1], item[0])):
        for group in [group for group in waiting if label in counts[group]]:
            half = len(members[group]) / 2
            # a list that is nearly full takes no further group, unless all are
            open_to = [place for place in range(len(shares)) if room[place] >= half] or range(len(shares))
            places[group] = max(open_to, key=lambda place: (lacking[place][label], room[place]))
            lacking[places[group]].subtract(counts[group])
            room[places[group]] -= len(members[group])
        waiting = [group for group in waiting if group not in places]
    # groups without labels fill the lists up to their shares
    for group in waiting:
        places[group] = max(range(len(shares)), key=lambda place: room[place])
        room[places[group]] -= len(members[group])
    _share_labels(places, counts, members, len(shares))
    # no list may be empty, even if its share is tiny
    for empty in set(range(len(shares))) - set(places.values()):
        largest = Counter(places.values()).most_common(1)[0][0]
        places[next(group for group, place in places.items() if place == largest)] = empty
    lists: list[list[Sample]] = [[] for _ in shares]
    for group in range(len(members)):
        lists[places[group]] += members[group]
    return lists


def _labels_of(sample: Sample) -> set[str]:
    return {instance.label for instance in sample.instances if instance.text is None}


def _share_labels(places: dict[int, int], counts: Sequence[Counter[str]], members: Sequence[list[Sample]], lists: int) -> None:
    """Move a labelled group into each list without labels: nothing can be measured on images without objects."""
    for place in range(lists):
        labelled = Counter(places[group] for group in places if counts[group])
        donor, most = labelled.most_common(1)[0] if labelled else (place, 0)
        if labelled[place] or most < 2:
            continue
        candidates = [group for group in places if places[group] == donor and counts[group]]
        given = min(candidates, key=lambda group: len(members[group]))
        back = next((group for group in places if places[group] == place and len(members[group]) == len(members[given])), None)
        places[given] = place
        if back is not None:  # so that the shares stay as they are
            places[back] = donor


def group_samples(samples: Sequence[Sample], groups: str | None) -> dict[str, list[Sample]]:
    """Group the samples that stay together: equal files, Roboflow's copies of an image, and those of `groups`.

    `groups`: `folder`, or a regular expression whose first group (or match) in the path names the group.
    """
    found: dict[str, list[Sample]] = defaultdict(list)
    contents = _equal([sample.image for sample in samples])
    for sample in samples:
        path, copied = sample.image, ROBOFLOW.match(sample.image.stem)
        key = copied[1] if copied else contents.get(path, str(path))
        if groups == FOLDER:
            key = str(path.parent)
        elif groups and (match := re.search(groups, str(path))):
            key = match[1] if match.groups() else match[0]
        found[key].append(sample)
    return found


def count_copies(train: Sequence[Sample], others: Sequence[Sample]) -> int:
    """Number of samples among `others` whose image file is equal to one of `train`, under whatever name."""
    contents = _equal([sample.image for sample in (*train, *others)])
    learned = {contents[sample.image] for sample in train if sample.image in contents}
    return sum(contents.get(sample.image) in learned for sample in others)


def _equal(paths: Sequence[Path]) -> dict[Path, str]:
    """Digest of each file that shares its size and its end with another; other files are not read, or only their end."""
    for read in (_size, _end):
        kinds = defaultdict[object, list[Path]](list)
        for path in paths:
            kinds[read(path)].append(path)
        paths = [path for alike in kinds.values() if len(alike) > 1 for path in alike]
    return {path: _digest(path.read_bytes()) for path in paths}


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size


def _end(path: Path) -> tuple[int, str]:
    """Size of a file, and digest of its last bytes: those of two pictures hardly ever agree."""
    size = _size(path)
    with path.open('rb') as file:
        file.seek(max(0, size - END))
        return size, _digest(file.read())
