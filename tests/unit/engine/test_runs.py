"""Run folders: what their recipes hold."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from phalanx.config.read import ConfigError, to_plain
from phalanx.config.show import to_yaml
from phalanx.deploy.inputs import list_files
from phalanx.engine.checks import check_initial, check_parts
from phalanx.engine.folder import NEW_LOG, check_folder, differences, lock_folder, resolve_names, set_aside
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.engine.worker import prepare_folder
from phalanx.families.recognition.task import Recognition
from phalanx.families.segmentation.task import Segmentation
from phalanx.system.errors import RequestError
from phalanx.weights.checkpoint import Checkpoints
from running import TINY

LENGTH = 'train: {steps: 1, global_batch_size: 1}\n'


def start_run(recipe: Path) -> Path:
    """A run folder of the recipe, as a start leaves it."""
    folder = recipe.parent / 'run'
    folder.mkdir()
    (folder / 'config.yml').write_text(to_yaml(resolve_names(open_job(str(recipe)))), encoding='utf-8')
    return folder


def test_a_run_folder_holds_the_names_of_classes_that_a_file_of_the_data_set_says(tmp_path: Path) -> None:
    """So that it predicts where the data set is not; and the same recipe still goes on in it."""
    (tmp_path / 'classes.txt').write_text('sky\nStraße: "nass"\n', encoding='utf-8')
    recipe = tmp_path / 'mine.yml'
    recipe.write_text(f'_base_: pp_liteseg\ndata: {{name: file_list, root: {tmp_path}}}\n{LENGTH}')
    folder = start_run(recipe)
    assert differences(open_job(str(recipe), folder=folder)) == []
    (tmp_path / 'classes.txt').write_text('sky\nroad\n')
    assert [line.split(':')[0] for line in differences(open_job(str(recipe), folder=folder))] == ['data.classes']
    (tmp_path / 'classes.txt').unlink()
    task = open_job(str(folder)).task
    assert isinstance(task, Segmentation)
    assert task.metric().class_names == ('sky', 'Straße: "nass"')


def test_a_run_folder_holds_the_characters_of_a_dictionary_file(tmp_path: Path) -> None:
    """Among them what YAML would take for a number, for nothing, or for a comment."""
    characters = ('1', '~', '#', ' ', '"', '\\', '漢', '\u3000', '😀')
    (tmp_path / 'dict.txt').write_text('\n'.join(characters) + '\n', encoding='utf-8')
    recipe = tmp_path / 'mine.yml'
    data = f'data: {{name: label_files, root: {tmp_path}}}\ncharacters: {{dictionary: {tmp_path}/dict.txt}}\n'
    recipe.write_text(f'_base_: crnn\n{data}{LENGTH}')
    folder = start_run(recipe)
    (tmp_path / 'dict.txt').unlink()
    task = open_job(str(folder)).task
    assert isinstance(task, Recognition)
    assert task.characters.characters == characters


def test_a_compiled_run_on_a_cpu_without_a_compiler_is_reported_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = open_job('pp_liteseg_digits', [('train.compile=true', '--set'), ('device=cpu', '--set')], folder=tmp_path)
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.raises(RequestError, match=r'train\.compile: .* no-such-compiler, which is not installed; install it .* CXX'):
        check_parts(job, 1)
    monkeypatch.setenv('CXX', 'true')
    check_parts(job, 1)


def test_a_run_trains_with_the_parts_that_the_checks_have_built(tmp_path: Path) -> None:
    """And with the same weights and random numbers as one that builds them itself."""
    words = (*TINY[2:], 'train.freeze=[backbone]', f'train.init_from={tmp_path}/w.safetensors')
    model = open_job(TINY[0], [(word, word) for word in TINY[2:]]).task.model()
    safetensors.torch.save_file(model.state_dict(), tmp_path / 'w.safetensors')
    job = open_job(TINY[0], [(word, word) for word in words], tmp_path / 'run')
    cpu = torch.device('cpu')
    alone: Trainer = Trainer(job.recipe, job.task, folder=job.folder, device=cpu)
    random = torch.rand(1)
    parts = check_parts(job, 1)
    check_initial(job, parts, None, fresh=False)
    torch.rand(1)
    trainer: Trainer = Trainer(job.recipe, job.task, folder=job.folder, device=cpu, parts=parts)
    assert torch.rand(1) == random
    assert (trainer.model, trainer.dataset, trainer.evalset) == (parts.network, parts.train, parts.evaluation)
    assert trainer.initial is parts.initial and len(trainer.initial) == 1
    others = dict(alone.model.named_parameters())
    for name, value in trainer.model.named_parameters():
        assert value.equal(others[name]) and value.requires_grad == others[name].requires_grad, name


def test_parts_that_cannot_be_built_are_reported_together(tmp_path: Path) -> None:
    """The lists of both splits, and losses that are too few for the network."""
    (tmp_path / 'classes.txt').write_text('background\ncrack\n')
    recipe = tmp_path / 'mine.yml'
    recipe.write_text(f'_base_: pp_liteseg\ndata: {{name: file_list, root: {tmp_path}}}\nloss: [dice]\n{LENGTH}')
    with pytest.raises(RequestError) as raised:
        check_parts(open_job(str(recipe)), 1)
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert [name in line for name, line in zip(('train.txt', 'val.txt', '3 outputs'), lines, strict=True)] == [True] * 3


OTHER = """
import fcntl, sys
file = open(sys.argv[1], 'w')
fcntl.lockf(file, fcntl.LOCK_EX)
print('process 7 on elsewhere', file=file, end='', flush=True)
print('locked', flush=True)
sys.stdin.read()
"""


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    """Nor does a second one set the folder of the first aside. Locks belong to processes, so the other run is one."""
    recipe = tmp_path / 'mine.yml'
    recipe.write_text(f'_base_: pp_liteseg\ndata: {{name: digit_scenes}}\n{LENGTH}')
    job = open_job(str(recipe), folder=tmp_path)
    command = [sys.executable, '-c', OTHER, str(tmp_path / 'lock')]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == 'locked\n'
        with pytest.raises(RequestError, match=r'another run writes here \(process 7 on elsewhere\)'):
            check_folder(job, None, fresh=True)
        other.communicate('')
    check_folder(job, None, fresh=True)
    lock_folder(tmp_path).close()
    assert (tmp_path / 'lock').read_text().startswith(f'process {os.getpid()} on ')


@pytest.mark.parametrize('page', ['README.md', 'docs/data.md'])
def test_the_recipes_that_the_documentation_shows_are_right(page: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / page).read_text(encoding='utf-8')
    recipe = re.findall('```yaml\n(.*?)```', text, re.DOTALL)[0]  # the others are parts
    (tmp_path / 'mine.yml').write_text(recipe, encoding='utf-8')
    assert open_job(str(tmp_path / 'mine.yml')).recipe.train.epochs == 100


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('pp_litseg_digits', "did you mean 'pp_liteseg_digits'?"),
        ('none.yml', '(`phalanx config` lists them)'),
        ('.', 'is not a run folder: it has no config.yml'),
    ],
)
def test_a_recipe_that_is_not_there_is_reported_with_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        open_job(name)
    assert message in str(caught.value)


def test_norms_cannot_keep_statistics_that_no_weights_bring() -> None:
    with pytest.raises(RequestError, match=r'norm_sync: frozen needs train\.init_from: without initial weights'):
        check_parts(open_job('pp_liteseg_digits', [('norm_sync=frozen', '--set norm_sync=frozen')]), 1)
    open_job('pp_liteseg_digits', [(text, '--set') for text in ('norm_sync=frozen', 'train.init_from=runs/before')])


def test_a_new_name_begins_a_part_again_whichever_assignment_was_typed_first() -> None:
    typed = ('optimizer.weight_decay=0.3', 'train.steps=4', 'optimizer.name=adamw', 'optimizer.lr=0.001')
    optimizer = to_plain(open_job('pp_liteseg_digits', [(text, text) for text in typed]).resolved)['optimizer']
    assert (optimizer['name'], optimizer['weight_decay'], optimizer['lr']) == ('adamw', 0.3, 0.001)
    typed = ('optimizer.lr=9', 'optimizer={name: sgd, lr: 1}', 'optimizer.momentum=0.5', 'optimizer.name=sgd')
    optimizer = to_plain(open_job('pp_liteseg_digits', [(text, text) for text in typed]).resolved)['optimizer']
    assert (optimizer['name'], optimizer['momentum'], optimizer['lr']) == ('sgd', 0.5, 1)


def test_results_never_take_the_place_of_images_nor_are_taken_for_them(tmp_path: Path) -> None:
    photos, results = tmp_path / 'photos', tmp_path / 'photos' / 'results'
    results.mkdir(parents=True)
    for name in ('a.png', 'results/a.png'):
        (photos / name).touch()
    assert list_files([photos], results) == {photos / 'a.png': Path('a')}
    for given in (photos, photos / 'a.png'):
        with pytest.raises(RequestError, match=r'the result of .*a\.png could take its place'):
            list_files([given], photos)


@pytest.mark.parametrize('base', ['pp_liteseg', 'ppyoloe', 'crnn', 'pp_ocrv3_rec', 'slanet'])
def test_a_base_lacks_nothing_but_data(base: str, tmp_path: Path) -> None:
    (tmp_path / 'mine.yml').write_text(f'_base_: {base}\ndata: {{name: null}}\n')
    with pytest.raises(ConfigError) as caught:
        open_job(str(tmp_path / 'mine.yml'))
    assert [problem.split(': ')[1] for problem in caught.value.problems] == ['data.name']


def test_a_recipe_without_its_task_says_all_else_that_is_wrong_too(tmp_path: Path) -> None:
    (tmp_path / 'mine.yml').write_text('trian: {}\nloss: []\ntrain: {stps: 5}\n')
    with pytest.raises(ConfigError) as caught:
        open_job(str(tmp_path / 'mine.yml'), [('data', '--set data'), ('train.0', '--set train.0')])
    assert [problem.partition('expected')[2] for problem in caught.value.problems] == [' key=value', ' key=value']
    with pytest.raises(ConfigError) as caught:
        open_job(str(tmp_path / 'mine.yml'))
    message = [problem.partition(': ')[2].partition(';')[0] for problem in caught.value.problems]
    assert message == [
        'task: missing',
        'trian: unknown key',
        'train.stps: unknown key',
        'optimizer: missing',
        'schedule: missing',
    ]


@pytest.mark.parametrize(
    ('world_size', 'sets', 'fits'),
    [
        (1, ['train.global_batch_size=1'], False),
        (1, ['train.global_batch_size=2', 'train.micro_batches=2'], False),
        (2, ['train.global_batch_size=2', 'norm_sync=off'], False),
        (2, ['train.global_batch_size=2', 'norm_sync=global'], True),
        (1, ['train.global_batch_size=2'], True),
    ],
)
def test_a_batch_norm_that_would_see_one_value_per_channel_is_reported_before_anything_starts(
    world_size: int, sets: list[str], fits: bool
) -> None:
    """PP-LiteSeg pools its deepest map to one pixel."""
    small = [*TINY[2:], *sets]
    job = open_job(TINY[0], [(text, text) for text in small])
    with contextlib.nullcontext() if fits else pytest.raises(RequestError, match='a batch norm gets one value per channel'):
        check_parts(job, world_size)


def test_a_folder_with_the_page_of_a_data_check_has_no_run_to_set_aside(tmp_path: Path) -> None:
    (tmp_path / 'data.html').write_text('checked')
    assert set_aside(tmp_path) is None and tmp_path.is_dir()


def test_a_run_that_is_set_aside_keeps_its_logs_and_those_of_the_new_ranks_follow_the_new_run(tmp_path: Path) -> None:
    folder, job = tmp_path / 'run', open_job('unet_digits', (), tmp_path / 'run')
    with contextlib.ExitStack() as stack:
        prepare_folder(job, None, False, stack)
    (folder / 'log').mkdir()
    (folder / 'log/workerlog.1').write_text('earlier')
    with (folder / f'log/{NEW_LOG}workerlog.1').open('w') as log, contextlib.ExitStack() as stack:
        prepare_folder(job, None, True, stack)
        log.write('new')
    assert (tmp_path / 'run.old-1/log/workerlog.1').read_text() == 'earlier'
    assert [path.name for path in (folder / 'log').iterdir()] == ['workerlog.1']
    assert (folder / 'log/workerlog.1').read_text() == 'new'


def test_a_job_of_slurm_that_queues_again_does_not_set_its_own_run_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--fresh` is in its command each time; once, it is obeyed."""

    def start(job: str, restarts: str) -> bool:
        """Start with --fresh; true if the earlier run was set aside."""
        monkeypatch.setenv('SLURM_JOB_ID', job)
        monkeypatch.setenv('SLURM_RESTART_COUNT', restarts)
        with contextlib.ExitStack() as stack:
            _, notes = prepare_folder(open_job('unet_digits', (), tmp_path / 'run'), None, True, stack)
        return any('was moved to' in note for note in notes)

    (tmp_path / 'run/log').mkdir(parents=True)  # ranks of other launchers make their logs first
    assert [start('7', '0'), start('7', '1'), start('7', '2')] == [False, False, False]
    assert start('7', '2')  # a second command of this start
    assert start('8', '0')
    monkeypatch.setenv('SLURM_JOB_ID', '')
    assert start('', '0')


def test_a_job_of_slurm_that_queues_again_goes_back_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--resume CHECKPOINT` is in its command each time."""
    job, own = open_job('unet_digits', (), tmp_path / 'run'), Checkpoints(tmp_path / 'run', keep=3)
    weights = {'weight': torch.zeros(1)}
    own.folder.mkdir()

    def start(restarts: str) -> int:
        """Step that a start continues from."""
        monkeypatch.setenv('SLURM_JOB_ID', '7')
        monkeypatch.setenv('SLURM_RESTART_COUNT', restarts)
        with contextlib.ExitStack() as stack:
            checkpoint, _ = prepare_folder(job, str(tmp_path / 'run/checkpoints/step_0000001'), False, stack)
        assert checkpoint is not None
        return checkpoint.step

    for step in (1, 2):
        own.save(step, weights, None, {'best_step': 1}, False)
    assert start('0') == 1
    own.save(3, weights, None, {'best_step': 1}, False)
    assert [start('1'), start('1')] == [3, 1]  # the second is another command of this start
