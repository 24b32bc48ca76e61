"""A cache of decoded images makes a run faster, and nothing else."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from faults.files import FILES, write_data_set
from running import Command, losses


def test_a_run_with_a_cache_is_the_run_without_to_the_last_bit(phalanx: Command, tmp_path: Path) -> None:
    """Three passes over eight images, two ranks with a loader worker each, so that all four processes share what they read."""
    write_data_set(tmp_path)
    recipe = (*FILES, 'train.steps=6', 'train.workers=1', 'evaluate.every=3', '--nproc_per_node', '2')
    caches = {'without': 'null', 'memory': '{gib: 0.01}', 'disk': '{gib: 0.01, folder: data}', 'full': '{gib: 0.001}'}
    for name, cache in caches.items():
        run = phalanx('train', *recipe, '--set', f'train.cache={cache}', '--save_dir', name)
        assert run.returncode == 0, run.stderr
        assert losses(tmp_path / name) == losses(tmp_path / 'without')
        one, other = (load_file(tmp_path / run / 'latest' / 'model.safetensors') for run in (name, 'without'))
        assert all(value.equal(other[key]) for key, value in one.items())
