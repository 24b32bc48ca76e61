"""Requests that are wrong: exit status 2, nothing started, the message with the place and the cure."""

from pathlib import Path

import pytest

from running import TINY, Command


def test_all_mistakes_of_a_recipe_are_reported_before_any_process_starts(phalanx_here: Command, tmp_path: Path) -> None:
    (tmp_path / 'mine.yml').write_text(
        'task: segmentation\nmodel: {name: pp_litseg}\ndata: {name: digit_scenes}\n'
        'train: {stepps: 3, global_batch_size: many}\noptimizer: {name: sgd, lr: fast}\nschedule: constant\n'
    )
    run = phalanx_here('train', 'mine.yml', '--nproc_per_node', '2', '--set', 'report.evry=1')
    assert run.returncode == 2
    assert run.stdout == ''
    for reason in (
        "mine.yml:2: model.name: 'pp_litseg' is not one of pp_liteseg, unet, ocrnet, segformer, deeplabv3p, lraspp; did",
        "mine.yml:4: train.stepps: unknown key; did you mean 'steps'?",
        "mine.yml:4: train.global_batch_size: expected an integer, got 'many'",
        "mine.yml:5: optimizer.lr: expected a number, got 'fast'",
        "--set report.evry=1: report.evry: unknown key; did you mean 'every'?",
    ):
        assert reason in run.stderr
    assert not (tmp_path / 'runs').exists()


@pytest.mark.parametrize(
    ('words', 'reason'),
    [
        (('train', 'no_such_recipe'), 'no_such_recipe: no such file or shipped recipe'),
        (('train',), 'the recipe is missing'),
        (('train', 'pp_liteseg_digits', 'train.seed'), "'train.seed': expected KEY VALUE pairs after the recipe"),
        (('train', 'pp_liteseg_digits', '--gpus', '0,x'), "--gpus '0,x': expected numbers separated by commas"),
        (('train', 'pp_liteseg_digits', '--gpus', '0,0'), '--gpus 0,0: a device is named twice'),
        (('train', 'pp_liteseg_digits', '--nproc_per_node', '0'), '--nproc_per_node 0: at least 1 process'),
        (('train', 'pp_liteseg_digits', '--resume', 'nowhere'), '--resume nowhere: no such folder'),
        (('train', 'pp_liteseg_digits', '--master', '10.0.0.1:4000'), '--master 10.0.0.1:4000 needs --nnodes'),
        (('train', 'pp_liteseg_digits', '--set', 'optimizer.lr=-1'), 'optimizer: lr cannot be negative, got -1.0'),
        (('train', 'pp_liteseg_digits', '--set', 'optimizer.lr=.nan'), 'optimizer.lr: expected a finite number'),
        (('train', 'pp_liteseg_digits', '--set', 'schedule={name: step}'), 'the step schedule needs `every` or `every_epochs`'),
        (
            ('train', 'pp_liteseg_digits', '--set', 'transforms=[random_flip, {name: random_padding_crop, crop_size: [0, 0]}]'),
            'transforms[1]: crop_size is (height, width) in pixels, each at least 1; got 0, 0',
        ),
        (('train', 'pp_liteseg_digits', '--set', 'task=[segmentation]'), "task: ['segmentation'] is not one of"),
        (('plan', 'pp_liteseg_digits', '--nodes', '1,a'), '--nodes 1,a: expected numbers from 1 on, such as 1,2,4'),
        (('trian', 'x'), "'trian' is not a command"),
        (('predict', 'pp_liteseg_digits', 'nothing.jpg', '--out', 'out'), 'nothing.jpg: there is no such file or folder'),
    ],
)
def test_a_wrong_request_is_refused_with_the_reason(phalanx_here: Command, words: tuple[str, ...], reason: str) -> None:
    run = phalanx_here(*words)
    assert run.returncode == 2, run.stderr
    assert reason in run.stderr


@pytest.mark.parametrize(
    'words',
    [
        'eval pp_liteseg_digits --weights broken.pth',
        'eval pp_liteseg_digits --weights broken.pth --nproc_per_node 2',
        'export pp_liteseg_digits --weights broken.pth --out model.onnx',
        'predict pp_liteseg_digits line.png --weights broken.pth',
        'convert weights broken.pth --recipe pp_liteseg_digits --out converted.safetensors',
        'read line.png --det broken.onnx --rec broken.onnx --out texts',
    ],
)
def test_weights_that_cannot_be_used_are_a_wrong_request(phalanx_here: Command, tmp_path: Path, words: str) -> None:
    (tmp_path / 'line.png').touch()
    broken = tmp_path / words[words.index('broken') :].split()[0]
    broken.write_text('no weights')
    run = phalanx_here(*words.split())
    assert run.returncode == 2, run.stderr
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f'{broken.name}: ') and ('is not a file of torch.save' in last or 'it is damaged' in last)


def test_a_global_batch_smaller_than_the_world_is_refused(phalanx_here: Command) -> None:
    run = phalanx_here('train', *TINY, 'train.steps=2', 'train.global_batch_size=2', '--nproc_per_node', '3')
    assert run.returncode == 2, run.stderr
    assert 'it needs at least 3 samples' in run.stderr


def test_another_recipe_in_the_same_folder_is_refused_with_the_difference(phalanx_here: Command, tmp_path: Path) -> None:
    recipe = (*TINY, 'train.steps=2', 'evaluate.enabled=false')
    assert phalanx_here('train', *recipe).returncode == 0
    first = (tmp_path / 'runs' / 'pp_liteseg_digits' / 'summary.json').read_text()
    assert phalanx_here('train', *recipe).returncode == 0  # nothing is left to train, and what was measured stays
    assert (tmp_path / 'runs' / 'pp_liteseg_digits' / 'summary.json').read_text() == first
    changed = phalanx_here('train', *recipe, 'optimizer.lr=0.5')
    assert changed.returncode == 2
    assert 'optimizer.lr: there 0.' in changed.stderr
    assert 'now 0.5' in changed.stderr
    aside = phalanx_here('train', *recipe, 'optimizer.lr=0.5', '--fresh')
    assert aside.returncode == 0, aside.stderr
    assert (tmp_path / 'runs' / 'pp_liteseg_digits.old-1' / 'summary.json').is_file()


def test_a_folder_that_is_not_a_run_is_never_moved_aside(phalanx_here: Command, tmp_path: Path) -> None:
    (tmp_path / 'precious').mkdir()
    (tmp_path / 'precious' / 'thesis.txt').write_text('x')
    for folder in ('precious', 'precious/thesis.txt', '.'):
        run = phalanx_here('train', *TINY, 'train.steps=1', '--fresh', '--save_dir', folder)
        assert run.returncode == 2, (folder, run.stderr)
        assert 'is not a run folder, so it is not set aside' in run.stderr
    assert [path.name for path in tmp_path.rglob('*')] == ['precious', 'thesis.txt']


@pytest.mark.long
def test_gpus_on_a_node_without_any_start_cpu_ranks_with_a_note(phalanx: Command) -> None:
    run = phalanx('train', *TINY, 'train.steps=1', 'evaluate.enabled=false', '--gpus', '0,1')
    assert run.returncode == 0, run.stderr
    assert 'starting 2 ranks on the CPU' in run.stderr
