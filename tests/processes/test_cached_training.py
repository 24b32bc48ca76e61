"""A cache of decoded images makes a run faster, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from faults.files import FILES, write_data_set
from running import IN_TURN, both_ranks, losses

CACHES = {'without': 'null', 'memory': '{gib: 0.01}', 'disk': '{gib: 0.01, folder: data}', 'full': '{gib: 0.001}'}


@pytest.mark.long
def test_a_run_with_a_cache_is_the_run_without_to_the_last_bit(tmp_path: Path) -> None:
    """Three passes over eight images, two ranks with a loader worker each, so that all four processes share what they read."""
    write_data_set(tmp_path)
    recipe = ('train', *FILES, 'train.steps=6', 'train.workers=1', 'evaluate.every=3')
    both_ranks(
        IN_TURN, tmp_path, json.dumps([(*recipe, f'train.cache={cache}', '--save_dir', name) for name, cache in CACHES.items()])
    )
    for name in CACHES:
        assert losses(tmp_path / name) == losses(tmp_path / 'without')
        one, other = (load_file(tmp_path / run / 'latest' / 'model.safetensors') for run in (name, 'without'))
        assert all(value.equal(other[key]) for key, value in one.items())
