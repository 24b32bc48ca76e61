"""Lines of YOLO's label files and keys of its data.yaml, for the data set of recipes and for `phalanx new`."""

import math
from typing import Any, Literal, NamedTuple

from phalanx.data.checks import AnnotationError, check_unique

FIELDS = 'class x y width height, the last four as fractions of the image (x, y: the middle)'
SLACK = 0.02  # of the image, by which keypoints may lie outside their box


class YoloRow(NamedTuple):
    """Object of a line, in fractions of the image."""

    label: int
    box: tuple[float, float, float, float]  # x0, y0, x1, y1
    kind: Literal['box', 'confidence', 'keypoints', 'polygon']  # behind the class: a box, with something after it, or points
    points: tuple[tuple[float, float], ...] = ()  # of a polygon


class PoseGuess:
    """Test whether all polygons may be poses whose `kpt_shape` is missing: boxes with keypoints in them, of one length."""

    def __init__(self) -> None:
        self._shapes: set[tuple[int, int]] | None = None  # that fit all polygons so far; None before the first

    def add(self, row: YoloRow) -> None:
        values = [value for point in row.points for value in point]
        if values:
            own = {(len(values[4:]) // size, size) for size in (2, 3) if not len(values[4:]) % size and _may_be(values, size)}
            self._shapes = own if self._shapes is None else self._shapes & own

    def check(self, where: object) -> None:
        """Raise AnnotationError if all polygons may be poses."""
        if self._shapes:
            count, size = max(self._shapes, key=lambda shape: shape[1])
            raise AnnotationError(
                f'{where}: each line may be a polygon, or a box with {count} keypoints in it; '
                f'say so in data.yaml: `kpt_shape: [{count}, {size}]` for keypoints, `kpt_shape: []` for polygons'
            )


def _may_be(values: list[float], size: int) -> bool:
    """True if these are a box in the image and, in it, keypoints of `size` numbers: x, y and perhaps visibility."""
    x, y, width, height = values[:4]
    places = [values[start : start + size] for start in range(4, len(values), size)]
    is_inside = abs(x - 0.5) + width / 2 <= 0.5 + SLACK and abs(y - 0.5) + height / 2 <= 0.5 + SLACK
    seen = [place for place in places if place[:2] != [0, 0]]  # 0, 0: not marked
    close = all(abs(px - x) <= width / 2 + SLACK and abs(py - y) <= height / 2 + SLACK for px, py, *_ in seen)
    return is_inside and bool(seen) and close and all(place[2] in (0, 1, 2) for place in places if size == 3)


def distinct_lines(text: str) -> dict[str, int]:
    """Return the lines of a file with their numbers. One that repeats an earlier one is the same object, as in Ultralytics."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.split():
            lines.setdefault(' '.join(words), number)
    return lines


def parse_row(line: str, where: str, keypoints: int = 0) -> YoloRow:
    """Parse a box, with or without a confidence or `keypoints` numbers behind it, or a polygon.

    Raises AnnotationError, beginning with `where`.
    """
    try:
        row = [float(word) for word in line.split()]
    except ValueError:
        row = []
    expected, hint, count = FIELDS, '', len(row)
    if keypoints:
        expected = f'class, box and {keypoints} numbers of keypoints (kpt_shape in data.yaml)'
        is_known = count == 5 + keypoints
    else:
        is_known = count in (5, 6) or (count > 6 and count % 2 == 1)
        hint = '; are there keypoints behind the box? Then data.yaml needs kpt_shape' if count > 7 and not is_known else ''
    # Corners may lie a little outside the image, but values in pixels are far above 2.
    places = row[1:5] if keypoints or count < 7 else row[1:]
    is_valid = is_known and row[0] >= 0 and row[0] % 1 == 0 and all(-1 <= value <= 2 for value in places)
    if not is_valid or not all(map(math.isfinite, row)):
        pixels = ', which may be pixels' if is_known and max(places, key=abs) > 2 else ''
        raise AnnotationError(f'{where}: expected {expected}, got {line.strip()[:80]!r}{pixels}{hint}')
    if count > 6 and not keypoints:
        points = tuple(zip(row[1::2], row[2::2], strict=True))
        xs, ys = zip(*points, strict=True)
        return YoloRow(int(row[0]), (min(xs), min(ys), max(xs), max(ys)), 'polygon', points)
    x, y, width, height = row[1:5]
    kind: Literal['box', 'confidence', 'keypoints'] = 'keypoints' if keypoints else 'confidence' if count == 6 else 'box'
    return YoloRow(int(row[0]), (x - width / 2, y - height / 2, x + width / 2, y + height / 2), kind)


def keypoint_fields(settings: dict[str, Any]) -> int | None:
    """Number of keypoint values behind each box by `kpt_shape: [count, 2 or 3]`; 0: none (`[]`), None: not specified."""
    entry = settings.get('kpt_shape')
    if entry is None:
        return None
    shape = [one.value for one in entry.value] if isinstance(entry.value, list) else []
    return shape[0] * shape[1] if len(shape) == 2 and all(type(value) is int for value in shape) else 0


def names_in(settings: dict[str, Any], where: object) -> dict[int, str]:
    """Class names of a data.yaml by their numbers, as written (`no` is a word here); empty without `names`.

    Raises AnnotationError, beginning with `where`, for names that are no list and no mapping from numbers, or occur twice.
    """
    entry = settings.get('names')
    if entry is None:
        return {}
    listed = dict(enumerate(entry.value)) if isinstance(entry.value, list) else entry.value
    is_mapping = isinstance(listed, dict) and bool(listed) and all(str(key).isdecimal() for key in listed)
    if not is_mapping or any(one.text is None for one in listed.values()):
        raise AnnotationError(f'{where}: names: expected a list of names, or a mapping from numbers to names')
    names = {int(key): str(one.text).strip() for key, one in listed.items()}
    check_unique(names.values(), f'{where}: names')
    return dict(sorted(names.items()))
