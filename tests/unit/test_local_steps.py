"""When machines that step alone meet, and what cannot go with it."""

from __future__ import annotations

import pytest

from phalanx.config.read import ConfigError
from phalanx.gradients import GradientOptions
from phalanx.runs import open_job


@pytest.mark.parametrize(
    ('options', 'meetings', 'local'),
    [
        (GradientOptions(), [0, 1, 2, 3, 4, 5, 6, 7, 8], []),
        (GradientOptions(local_steps=3), [0, 3, 6], [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (GradientOptions(local_steps=3, local_from=4), [0, 1, 2, 3, 4, 6], [4, 5, 6, 7, 8]),
    ],
)
def test_machines_meet_at_multiples_after_the_steps_that_they_take_together(
    options: GradientOptions, meetings: list[int], local: list[int]
) -> None:
    """Meetings are a function of the step, so that a run that was started again has the same ones."""
    assert [steps for steps in range(9) if options.meets_after(steps)] == meetings
    assert [options.met_before(steps) for steps in range(1, 9)] == [max(m for m in meetings if m < n) for n in range(1, 9)]
    assert [step for step in range(9) if options.is_local(step)] == local


@pytest.mark.parametrize(
    ('settings', 'said'),
    [
        (['gradients.local_steps=4'], 'gradients.local_steps: 4 needs another norm_sync than global'),
        (['gradients.local_steps=4', 'norm_sync=off', 'precision.dtype=fp16'], 'needs precision.dtype bf16 or fp32'),
        (['gradients.local_steps=4', 'norm_sync=off', 'train.until=6'], 'needs a multiple of it as train.until, got 6'),
        (['gradients={local_steps: 4, compression: bf16}', 'norm_sync=off'], 'compression bf16 and local_steps 4 do not go'),
        (['gradients.compression=power_sgd', 'precision.dtype=fp16'], 'power_sgd needs precision.dtype bf16 or fp32'),
        (['gradients.local_steps=0'], 'local_steps must be at least 1 and local_from 0, got 0 and 0'),
    ],
)
def test_what_cannot_mean_anything_is_refused_before_the_start(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_job('pp_liteseg_digits', [(setting, f'--set {setting}') for setting in settings])
    assert said in str(refused.value)
