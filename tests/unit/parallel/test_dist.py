"""Ranks as launchers describe them in the environment."""

from __future__ import annotations

import pytest

from phalanx.parallel import dist


@pytest.mark.parametrize(
    ('variables', 'expected'),
    [({}, False), ({'RANK': '1'}, False), ({'WORLD_SIZE': '2'}, False), ({'RANK': '1', 'WORLD_SIZE': '2'}, True)],
)
def test_a_launcher_sets_both_the_rank_and_the_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ('RANK', 'WORLD_SIZE'):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert dist.is_launched() is expected
