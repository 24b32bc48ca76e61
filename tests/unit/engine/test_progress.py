"""Choice of the best evaluation of a run."""

from __future__ import annotations

import math
from dataclasses import asdict

from phalanx.engine.progress import Progress

BY = ('accuracy', 'teds')


def best_steps(*evaluations: tuple[float, float]) -> tuple[int, int]:
    """The best step, and how many evaluations brought nothing better since, of evaluations at steps 1, 2, ..."""
    progress = Progress()
    for step, scores in enumerate(evaluations, 1):
        progress.step = step
        progress.record_evaluation(dict(zip(BY, scores, strict=True)), BY)
    return progress.best_step, progress.no_better


def test_the_larger_metric_wins() -> None:
    assert best_steps((0.1, 0.9), (0.2, 0.1), (0.15, 0.5)) == (2, 1)


def test_of_equal_metrics_the_next_one_decides() -> None:
    """Accuracy is 0 in the first evaluations of many runs while they learn."""
    assert best_steps((0.0, 0.1), (0.0, 0.278), (0.0, 0.2)) == (2, 1)


def test_of_equal_evaluations_the_later_one_is_taken_but_is_no_progress() -> None:
    assert best_steps((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)) == (3, 2)


def test_what_is_no_number_is_never_the_best() -> None:
    assert best_steps((math.nan, 0.5), (math.nan, 0.6)) == (0, 2)
    assert best_steps((0.1, math.nan), (0.1, 0.2), (0.1, math.nan)) == (2, 1)


def test_progress_resumes_from_a_checkpoint_with_its_best() -> None:
    before = Progress(step=4)
    before.record_evaluation({'accuracy': 0.5, 'teds': 0.1}, BY)
    after = Progress.of(asdict(before), 4)
    after.step = 8
    assert not after.record_evaluation({'accuracy': 0.4, 'teds': 0.9}, BY)
    assert (after.best, after.best_step, after.no_better) == (0.5, 4, 1)


def test_state_of_an_older_version_has_defaults_for_what_it_lacks_and_no_more() -> None:
    assert Progress.of({'best': 0.5, 'best_step': 3, 'optimizer': {}}, 7) == Progress(step=7, best=0.5, best_step=3)


def diverges(*losses: float, since: Progress | None = None) -> list[bool]:
    progress = since or Progress()
    return [progress.has_diverged(loss) for loss in losses]


def test_a_loss_that_rose_tenfold_and_stays_above_the_first_has_diverged() -> None:
    """Batch norms may hide that weights exploded: after a short rise, the loss is only a little above the first."""
    assert diverges(20.0, 19.0, 200.0, *[20.5] * 39) == [False] * 41 + [True]
    assert not any(diverges(20.0, *[199.0] * 100))


def test_a_loss_that_rises_again_and_again_has_diverged() -> None:
    assert any(diverges(20.0, *[200.0, 19.0, 50.0, 18.0] * 10))


def test_a_loss_that_comes_back_within_forty_steps_has_not_diverged() -> None:
    assert not any(diverges(2.5, *[1e6] * 29, *[2.5] * 10, *[1e6] * 29, *[2.0] * 10))
    assert not any(diverges(2.5, *[2.0, 2.0, 1e6, *[2.0] * 10] * 10))


def test_a_small_loss_may_grow_to_what_other_networks_begin_with() -> None:
    """A batch without objects costs little, a detector with queries about fifty for others."""
    assert not any(diverges(0.0, *[99.0] * 100))
    assert not any(diverges(0.01, 100.0, *[0.9] * 100))


def test_a_resumed_run_goes_on_counting_the_steps_since_a_rise() -> None:
    before = Progress()
    assert not any(diverges(2.5, *[250.0] * 36, since=before))
    assert diverges(*[250.0] * 4, since=Progress.of(asdict(before), 7)) == [False, False, False, True]


def test_a_run_that_recovers_from_a_loss_at_its_start_is_making_progress() -> None:
    progress, counts = Progress(), []
    for progress.step, accuracy in enumerate((0.5, 0.1, 0.2, 0.3, 0.3, 0.2)):
        progress.record_evaluation({'accuracy': accuracy, 'teds': 0.0}, BY)
        counts.append(progress.no_better)
    assert (counts, progress.best_step) == ([0, 1, 0, 0, 1, 2], 0)
