"""Errors by cause: by hand, and as the package tidecv 1.0.1 counts and weighs them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.metric.errors import CAUSES, errors_by_cause, explain_images, sum_up
from phalanx.runtime.detection import Detections

Image = tuple[Detections, Objects]


def image(objects: list[tuple[list[float], int]], found: list[tuple[list[float], int, float]]) -> Image:
    boxes = np.array([box for box, _ in objects], np.float32).reshape(-1, 4)
    detections = Detections(
        np.array([box for box, _, _ in found], np.float32).reshape(-1, 4),
        np.array([score for _, _, score in found], np.float32),
        np.array([label for _, label, _ in found], np.int64),
    )
    return detections, Objects.plain(boxes, np.array([label for _, label in objects], np.int64))


def summary(*images: Image, classes: int = 2) -> dict[str, tuple[float, float]]:
    """AP50 lost and number of errors by cause."""
    table = errors_by_cause(sum_up(*explain_images(dict(enumerate(images))), classes))
    return {str(row['cause']): (float(row['ap50 lost']), float(row['errors'])) for row in table.rows}


HERE, THERE = [0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]
SHIFTED = [0.0, 0.0, 10.0, 4.0]  # IoU 0.4 with HERE


@pytest.mark.parametrize(
    ('found', 'expected'),
    [
        # one object; the only error hides it, so that without it AP50 rises from 0 to 1
        ([(HERE, 1, 0.9)], {'classification': (1, 1)}),
        ([(SHIFTED, 0, 0.9)], {'localisation': (1, 1)}),
        ([], {'missed': (0, 1)}),  # without objects no class is left
        # a more probable error before a right box: precision 1/2 at all recalls, 1 without it
        ([(THERE, 0, 0.9), (HERE, 0, 0.8)], {'background': (0.5, 1)}),
        # with two boxes of one object the more probable one is right: the duplicate costs nothing
        ([(HERE, 0, 0.9), (HERE, 0, 0.8)], {'duplicate': (0, 1)}),
        # neither class nor place: without it the object is still missed
        ([(SHIFTED, 1, 0.9)], {'both': (0, 1), 'missed': (0, 1)}),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, dict) else '',
)
def test_an_error_has_the_cost_of_a_hand_calculation(
    found: list[tuple[list[float], int, float]], expected: dict[str, tuple[float, float]]
) -> None:
    none = dict.fromkeys(CAUSES, (0.0, 0.0))
    assert summary(image([(HERE, 0)], found)) == {**none, **expected}


def test_of_several_boxes_of_an_object_only_the_most_probable_would_be_right() -> None:
    # without the error: right, and the second box disappears: precision 1
    found = summary(image([(HERE, 0)], [(SHIFTED, 0, 0.9), (SHIFTED, 0, 0.8)]))
    assert found['localisation'] == (1, 2)


def test_detections_in_ignored_objects_are_no_errors() -> None:
    detections, objects = image([(HERE, 0), (THERE, 0)], [(THERE, 0, 0.9), (HERE, 0, 0.8)])
    crowd = Objects(objects.boxes, objects.classes, np.array([False, True]), objects.areas)
    assert summary((detections, crowd)) == dict.fromkeys(CAUSES, (0, 0))


def test_nothing_found_and_nothing_there_counts_nothing() -> None:
    assert summary(image([], [])) == dict.fromkeys(CAUSES, (0, 0))


def random_images(seed: int) -> list[Image]:
    """Thirty images of four classes, with shifted, misnamed, repeated and invented boxes."""
    rng, images = np.random.default_rng(seed), []
    for _ in range(30):
        count = int(rng.integers(0, 7))
        sides, corners = rng.uniform(10, 60, (count, 2)), rng.uniform(0, 200, (count, 2))
        boxes, labels = np.concatenate([corners, corners + sides], 1), rng.integers(0, 4, count)
        found, classes = [], []
        for box, label in zip(boxes, labels, strict=True):
            for _ in range(rng.integers(0, 4)):
                found.append(box + rng.normal(0, rng.choice([2, 8]), 4))
                classes.append(int(label) if rng.random() < 0.7 else int(rng.integers(0, 4)))
        for _ in range(rng.integers(0, 4)):
            corner = rng.uniform(0, 200, 2)
            found.append(np.concatenate([corner, corner + rng.uniform(10, 60, 2)]))
            classes.append(int(rng.integers(0, 4)))
        scores = rng.random(len(classes)).astype(np.float32)
        detections = Detections(np.array(found, np.float32).reshape(-1, 4), scores, np.array(classes, np.int64))
        images.append((detections, Objects.plain(boxes.astype(np.float32), labels)))
    return images


# tidecv 1.0.1, TIDE().evaluate(...): main errors in points of AP50, and their numbers
TIDECV = {
    0: ([6.524795, 15.219824, 0.623341, 1.45381, 7.640232, 7.070822], [16, 34, 5, 31, 41, 17]),
    1: ([7.636053, 8.31009, 2.463802, 1.613983, 5.511252, 9.495131], [17, 25, 16, 20, 47, 29]),
}


@pytest.mark.parametrize('seed', TIDECV)
def test_costs_and_numbers_of_errors_are_those_of_tidecv(seed: int) -> None:
    costs, counts = zip(*summary(*random_images(seed), classes=4).values(), strict=True)
    assert_allclose(np.array(costs) * 100, TIDECV[seed][0], atol=1e-6)
    assert list(counts) == TIDECV[seed][1]


def test_costs_do_not_depend_on_the_rank_that_explained_an_image() -> None:
    """Equal scores are common in half precision, and their order decides the precision."""
    images = {
        number: (Detections(found.boxes, found.scores.round(1), found.classes), truth)
        for number, (found, truth) in enumerate(random_images(0))
    }
    shares = [explain_images({number: images[number] for number in range(rank, 30, 3)}) for rank in range(3)]
    gathered = sum_up(*map(np.concatenate, zip(*shares, strict=True)), 4)
    assert errors_by_cause(gathered).rows == errors_by_cause(sum_up(*explain_images(images), 4)).rows
