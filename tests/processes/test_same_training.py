"""Promise 1: with the global batch fixed, the cut of the batch does not show in the training."""

import json
from pathlib import Path
from statistics import mean

import pytest
from safetensors.torch import load_file

from running import IN_TURN, TINY, Command, both_ranks, losses, records

COMPARED = ('evaluate.enabled=false', 'optimizer.lr=2e-4', 'schedule={name: constant}')


@pytest.mark.parametrize(('ranks', 'workers'), [(2, 2), pytest.param(3, 0, marks=pytest.mark.long)])
def test_ranks_and_workers_train_like_one_process(
    phalanx_here: Command, tmp_path: Path, warm: Path, ranks: int, workers: int
) -> None:
    """Loss within 1e-5 relative on the way and 1e-4 after 50 steps of PP-LiteSeg, float32, batch norm synchronised."""
    recipe = (*TINY, *COMPARED, 'train.steps=50', f'train.init_from={warm}')
    alone = phalanx_here('train', *recipe, '--save_dir', 'alone')
    assert alone.returncode == 0, alone.stderr
    expected = losses(tmp_path / 'alone')
    assert len(expected) == 50
    assert mean(expected[40:48]) < mean(expected[:8])  # it does train: epochs of 48 samples
    before, after = (load_file(run / 'latest' / 'model.safetensors') for run in (warm, tmp_path / 'alone'))
    assert max((after[name] - before[name]).abs().max() for name in after if name.endswith('.weight')) > 1e-3
    both_ranks(
        IN_TURN, tmp_path, json.dumps([('train', *recipe, f'train.workers={workers}', '--save_dir', 'ranks')]), ranks=ranks
    )
    apart = [abs(a - b) / b for a, b in zip(losses(tmp_path / 'ranks'), expected, strict=True)]
    assert max(apart[:25]) < 1e-5, apart
    assert max(apart) < 1e-4, apart


@pytest.mark.long
def test_a_micro_batch_is_a_virtual_rank(phalanx: Command, tmp_path: Path, warm: Path) -> None:
    """With norms per rank; hard pixels are mined over the whole step all the same."""
    recipe = (*TINY, *COMPARED, 'train.steps=20', 'norm_sync=off', 'train.global_batch_size=4', f'train.init_from={warm}')
    for folder, sets in {'ranks': ('--nproc_per_node', '2'), 'parts': ('--set', 'train.micro_batches=2')}.items():
        run = phalanx('train', *recipe, *sets, '--save_dir', folder)
        assert run.returncode == 0, run.stderr
    assert losses(tmp_path / 'parts') == pytest.approx(losses(tmp_path / 'ranks'), rel=1e-5)


@pytest.mark.long
def test_frozen_statistics_of_norms_stay_and_the_cut_of_the_batch_does_not_show(
    phalanx: Command, tmp_path: Path, warm: Path
) -> None:
    recipe = (*TINY, *COMPARED, 'norm_sync=frozen', 'train.steps=4', f'train.init_from={warm}')
    for ranks in ('1', '3'):
        run = phalanx('train', *recipe, '--nproc_per_node', ranks, '--save_dir', ranks)
        assert run.returncode == 0, run.stderr
    assert losses(tmp_path / '3') == pytest.approx(losses(tmp_path / '1'), rel=1e-5)
    before, after = load_file(warm / 'latest' / 'model.safetensors'), load_file(tmp_path / '3' / 'latest' / 'model.safetensors')
    changed = {name for name, values in before.items() if not values.equal(after[name])}
    assert any(name.endswith('norm.weight') for name in changed)
    assert not [name for name in changed if 'running' in name]


@pytest.mark.long
def test_uneven_shares_of_a_batch_change_nothing(phalanx: Command, tmp_path: Path, warm: Path) -> None:
    """A global batch of 5 on 3 ranks is 2, 2 and 1 samples. (A fresh network would turn the last bit of one into 1e-4.)

    Of the 4 batches of the validation loss, rank 0 has two.
    """
    hard = '{name: ohem, min_kept_per_sample: 500}'  # the hardest pixels of the whole batch, wherever they are
    odd = ('train.global_batch_size=5', 'train.steps=3', f'train.init_from={warm}', f'loss=[{hard}, {hard}, {hard}]')
    recipe = (*TINY, *COMPARED, *odd, 'evaluate={enabled: true, loss: true, batch_size: 4}')
    assert phalanx('train', *recipe, '--save_dir', 'alone').returncode == 0
    run = phalanx('train', *recipe, '--nproc_per_node', '3', '--save_dir', 'three')
    assert run.returncode == 0, run.stderr
    assert losses(tmp_path / 'three') == pytest.approx(losses(tmp_path / 'alone'), rel=1e-5)
    (one, three) = (records(tmp_path / name, 'eval')[-1]['validation_loss'] for name in ('alone', 'three'))
    assert three == pytest.approx(one, rel=1e-4)


def test_thirteen_samples_on_four_ranks_count_thirteen_and_give_the_same_metrics(phalanx_here: Command, tmp_path: Path) -> None:
    """Promise 3: evaluation is exact, whatever the number of ranks."""
    trained = phalanx_here('train', *TINY, 'train.steps=4', '--save_dir', 'alone')
    assert trained.returncode == 0, trained.stderr
    evaluate = ('eval', 'alone', '--json')
    by_four = both_ranks(IN_TURN, tmp_path, json.dumps([evaluate]), ranks=4)
    found = [json.loads(output.splitlines()[-1]) for output in (phalanx_here(*evaluate).stdout, by_four)]
    assert [result['samples'] for result in found] == [13, 13]
    assert found[0]['table'] == found[1]['table']
    for key in ('mean_iou', 'accuracy', 'kappa', 'mean_dice'):
        assert found[0][key] == found[1][key] == records(tmp_path / 'alone', 'eval')[-1][key]


@pytest.mark.parametrize('sync', [pytest.param('global', marks=pytest.mark.long), 'off'])
def test_a_run_that_was_stopped_and_resumed_ends_bit_for_bit_like_one_that_was_not(tmp_path: Path, sync: str) -> None:
    """Promise 2, in the middle of an epoch (8 steps here), optimizer, EMA and data position included."""
    recipe = (
        'train',
        *TINY,
        'train.steps=7',
        'evaluate.every=3',
        'checkpoint.every=2',
        'ema={decay: 0.9}',
        f'norm_sync={sync}',
    )
    halves = (*recipe, '--save_dir', 'halves')
    output = both_ranks(
        IN_TURN, tmp_path, json.dumps([(*recipe, '--save_dir', 'whole'), (*halves, '--set', 'train.until=3'), halves])
    )
    assert 'resumed at step 3' in output
    for name in ('model.safetensors', 'averaged.safetensors'):
        whole, halves = (load_file(tmp_path / run / 'latest' / name) for run in ('whole', 'halves'))
        assert whole.keys() == halves.keys()
        for key, value in whole.items():
            assert value.equal(halves[key]), (name, key)
    assert losses(tmp_path / 'whole') == losses(tmp_path / 'halves')


def test_a_run_continues_with_another_number_of_ranks(phalanx_here: Command, tmp_path: Path, warm: Path) -> None:
    recipe = (*TINY, *COMPARED, 'train.steps=8', f'train.init_from={warm}')
    assert phalanx_here('train', *recipe, '--save_dir', 'alone').returncode == 0
    both_ranks(IN_TURN, tmp_path, json.dumps([('train', *recipe, 'train.until=4', '--save_dir', 'mixed')]))
    assert phalanx_here('train', *recipe, '--save_dir', 'mixed').returncode == 0
    assert losses(tmp_path / 'mixed') == pytest.approx(losses(tmp_path / 'alone'), rel=1e-5)


@pytest.mark.long
def test_epochs_with_a_batch_per_rank_are_complete_at_any_number_of_ranks(phalanx: Command, tmp_path: Path) -> None:
    """Two epochs of 24 samples, 2 on each rank: 3 steps of 2, 3 of 4, 3 of 6, and 6 of 2 for the 12 that are left."""
    recipe = (*TINY, 'evaluate.enabled=false', 'data.train_scenes=24', 'train.epochs=2', 'train.global_batch_size=null')
    recipe = (*recipe, 'train.batch_size_per_rank=2', 'schedule={power: 1, warmup_steps: 0}', '--save_dir', 'run')
    for ranks, until in (('1', '3'), ('2', '6'), ('3', '9')):
        start = phalanx('train', *recipe, f'train.until={until}', '--nproc_per_node', ranks)
        assert start.returncode == 0, start.stderr
    assert 'ranks 2 -> 3, global batch 4 -> 6, steps 6 of 14 -> 6 of 11' in start.stdout
    last = phalanx('train', *recipe)
    assert last.returncode == 0, last.stderr
    lines = records(tmp_path / 'run')
    assert [line['step'] for line in lines] == list(range(1, 16))
    samples = [round(line['epoch'] * 24) for line in lines]
    assert samples == [2, 4, 6, 10, 14, 18, 24, 30, 36, 38, 40, 42, 44, 46, 48]
    assert [line['lr'] for line in lines] == pytest.approx([0.01 * (1 - seen / 48) for seen in (0, *samples[:-1])])
    summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
    assert (summary['steps'], summary['epochs']) == (15, 2)
    saved = sorted(path.name for path in (tmp_path / 'run' / 'checkpoints').iterdir())
    assert saved[-1] == 'step_0000015' == (tmp_path / 'run' / 'latest').readlink().name
