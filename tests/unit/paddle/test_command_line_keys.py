"""Keys and options that documents of the Paddle projects put on command lines: each one has an effect, a note, or a refusal.

The lists: `Global` of PaddleOCR's config_en.md and of what its tools/program.py and tools/train.py read; PaddleDetection's
configs/runtime.yml and the keys that its documents override; the options of tools/train.py of PaddleSeg and PaddleDetection.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from test_originals_paddledet import FILES as DETECTION
from test_originals_paddleocr import FILES as OCR
from test_originals_paddleseg import FILES as SEGMENTATION

from phalanx.cli.main import main
from phalanx.cli.train import build_job, parse_command
from phalanx.config.read import ConfigError, Node, parse_assignment, to_plain
from phalanx.engine.job import Job
from phalanx.paddle.configs.command_line import for_recipe

# key and value; what a recipe and a configuration of PaddleOCR make of it: keys with values, or a refusal
GLOBAL: dict[str, dict[str, Any] | str] = {
    'use_gpu=false': {'device': 'cpu'},
    'epoch_num=7': {'train.epochs': 7},
    'print_batch_step=3': {'report.every': 3},
    'eval_batch_step=[0,70]': {'evaluate.every': 70},
    'eval_batch_step=60': {'evaluate.every': 60},
    'eval_batch_epoch=2': {'evaluate.every_epochs': 2, 'evaluate.every': None},
    'seed=5': {'train.seed': 5},
    'use_amp=true': {'precision.dtype': 'fp16'},
    'use_sync_bn=true': {'norm_sync': 'global'},
    'use_ema=true': {'ema.decay': 0.9998},
    'use_visualdl=true': {'report.visualdl': True},
    'use_wandb=true': {'report.trackers': 'wandb'},
    'pretrained_model=best': {'train.init_from': 'best'},
    'max_text_length=9': {'characters.max_length': 9},
    'use_space_char=true Global.character_dict_path=mine.txt': {'characters.space': True},
    'character_dict_path=ppocr/utils/en_dict.txt': {'characters.dictionary': 'en'},
    'character_dict_path=mine.txt': {'characters.dictionary': 'mine.txt'},
    **dict.fromkeys(('label_list=[0]', 'kie_det_model_dir=a', 'epochs_num=1'), 'refused'),
}
IGNORED = (
    *('log_smooth_window=1', 'save_epoch_step=1', 'cal_metric_during_train=true', 'calc_epoch_interval=2', 'log_ranks=0'),
    *('load_static_weights=true', 'character_type=en', 'distributed=true', 'debug=true', 'model_name=x', 'to_static=true'),
    *('save_res_path=a.txt', 'save_inference_dir=a', 'infer_img=a.jpg', 'infer_mode=true', 'd2s_train_image_shape=[1]'),
    *('use_xpu=true', 'use_npu=true', 'use_mlu=true', 'use_gcu=true', 'export_with_pir=true', 'amp_custom_black_list=[exp]'),
    *('find_unused_parameters=true', 'uniform_output_enabled=true', 'print_mem_info=true'),
)
DETECTION_KEYS: dict[str, dict[str, Any] | str] = {
    'use_gpu=true': {'device': 'auto'},
    'use_gpu=false': {'device': 'cpu'},
    'pretrain_weights=w': {'train.init_from': 'w'},
    'epoch=4': {'train.epochs': 4},
    'LearningRate.base_lr=0.5': {'optimizer.lr': 0.5},
    'TrainReader.batch_size=3': {'train.batch_size_per_rank': 3},
    'EvalReader.batch_size=3': {'evaluate.batch_size': 3},
    'worker_num=6': {'train.workers': 6},
    'log_iter=6': {'report.every': 6},
    'snapshot_epoch=6': {'checkpoint.every_epochs': 6, 'evaluate.every_epochs': 6},
    'TrainDataset.anno_path=a.json': {'data.train': 'a.json'},
    'EvalDataset.image_dir=pictures': {'data.eval_images': 'pictures'},
    'ssod_method=ARSL': 'refused',
}
DETECTION_IGNORED = 'weights=w', 'use_xpu=true', 'print_flops=true', 'num_classes=3', 'use_vdl=true'
SEGMENTATION_OPTIONS: dict[str, dict[str, Any]] = {
    '--iters 40': {'train.steps': 40},
    '--batch_size 3': {'train.batch_size_per_rank': 3},
    '--learning_rate 0.5': {'optimizer.lr': 0.5},
    '--save_interval 20': {'checkpoint.every': 20},
    '--log_iters 2': {'report.every': 2},
    '--num_workers 3': {'train.workers': 3},
    '--use_vdl': {'report.visualdl': True},
    '--use_ema': {'ema.decay': 0.999, 'ema.kind': 'ramp'},
    '--do_eval': {'evaluate.enabled': True},
    '--early_stop_intervals 4': {'evaluate.patience': 4},
    '--keep_checkpoint_max 2': {'checkpoint.keep': 2},
    '--seed 4': {'train.seed': 4},
    '--precision fp16': {'precision.dtype': 'fp16'},
    '--device cpu': {'device': 'cpu'},
    '--opts lr_scheduler.learning_rate 0.5 batch_size 3': {'optimizer.lr': 0.5, 'train.batch_size_per_rank': 3},
    '--profiler_options a=1 --to_static_training --amp_level O1 --output_op none --for_fd': {},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configurations of the projects, and a dictionary, in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path('crnn.yml').write_text(OCR['crnn'])
    for files in (DETECTION, SEGMENTATION):
        for name, text in files.items():
            Path(f'{name}.yml').write_text(text.lstrip())
    Path('mine.txt').write_text('a\nb\n')


def job(line: str) -> tuple[Job, dict[str, Any]]:
    found = build_job(*parse_command(shlex.split(line)))
    return found, to_plain(found.resolved)


def check(line: str, key: str, expected: dict[str, Any] | str) -> None:
    """Check the job of a command line: keys with values, or a refusal that names `key`."""
    if expected == 'refused':
        with pytest.raises(ConfigError, match=key):
            job(line)
        return
    keys = job(line)[1]
    assert not isinstance(expected, str)
    for path, value in expected.items():
        got: Any = keys
        for part in path.split('.'):
            got = got[part]
        if path == 'report.trackers':
            assert value in str(got)
        elif path in ('characters.dictionary', 'data.train'):
            assert str(got).removeprefix("['").removesuffix("']").endswith(value)
        else:
            assert got == value


@pytest.mark.parametrize(('word', 'expected'), GLOBAL.items())
@pytest.mark.parametrize('recipe', ['rec_mv3_none_bilstm_ctc', 'crnn.yml'])
def test_every_global_key_of_paddleocr_counts_for_recipes_as_for_its_own_files(
    recipe: str, word: str, expected: dict[str, Any] | str
) -> None:
    check(f'-c {recipe} -o Global.{word}', word.partition('=')[0], expected)


@pytest.mark.parametrize(('word', 'expected'), DETECTION_KEYS.items())
@pytest.mark.parametrize('recipe', ['ppyoloe_plus_crn_s_80e_coco', 'ppyoloe.yml'])
def test_keys_of_paddledetection_count_for_recipes_as_for_its_own_files(
    recipe: str, word: str, expected: dict[str, Any] | str
) -> None:
    check(f'-c {recipe} -o {word}', word.partition('=')[0], expected)


@pytest.mark.parametrize(
    ('recipe', 'section', 'ignored'),
    [
        ('rec_mv3_none_bilstm_ctc', 'Global.', IGNORED),
        ('crnn.yml', 'Global.', IGNORED),
        ('ppyoloe_plus_crn_s_80e_coco', '', DETECTION_IGNORED),
        ('ppyoloe.yml', '', DETECTION_IGNORED),
    ],
)
def test_keys_without_effect_are_noted(recipe: str, section: str, ignored: tuple[str, ...]) -> None:
    notes = job(f'-c {recipe} -o {" ".join(section + word for word in ignored)}')[0].notes
    for key in (word.partition('=')[0] for word in ignored):
        assert any(f'{section}{key} is ignored: ' in note for note in notes), key


@pytest.mark.parametrize('words', ['eval', 'predict a.png', 'export', 'data check', 'bench train', 'bench scaling', 'config'])
def test_commands_say_which_keys_they_ignore(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """There are neither weights nor data here, so all but one stop after that."""
    command, *image = words.split(' a.png')
    main([*command.split(), 'rec_mv3_none_bilstm_ctc', *(['a.png'] if image else []), '--set', f'Global.{IGNORED[0]}'])
    key = IGNORED[0].partition('=')[0]
    assert f'note: --set Global.{IGNORED[0]}: Global.{key} is ignored: ' in capsys.readouterr().err


@pytest.mark.parametrize(('words', 'expected'), SEGMENTATION_OPTIONS.items())
@pytest.mark.parametrize('recipe', ['unet_cityscapes_1024x512_160k', 'liteseg.yml'])
def test_options_of_paddleseg_count_for_recipes_as_for_its_own_files(recipe: str, words: str, expected: dict[str, Any]) -> None:
    check(f'--config {recipe} {words}', words, expected)


@pytest.mark.parametrize('word', ['-o Global.save_model_dir=out/a', '-o save_dir=out/a', '--save_dir out/a'])
@pytest.mark.parametrize('recipe', ['rec_mv3_none_bilstm_ctc', 'crnn.yml', 'ppyoloe.yml'])
def test_the_folder_of_a_run_is_what_a_command_line_says(recipe: str, word: str) -> None:
    """The folder in a configuration is only noted: all runs of one would share it."""
    assert job(f'-c {recipe} {word}')[0].folder == Path('out/a')
    assert job(f'-c {recipe}')[0].folder == Path('runs') / Path(recipe).stem


def test_the_curve_of_a_recipe_follows_its_epochs_as_in_paddleocr() -> None:
    """The recipe's curve of 105 epochs begins with a warm-up of 5 and ends with its 100 epochs."""
    keys = job('-c PP-OCRv6_small_rec -o Global.epoch_num=20')[1]
    assert (keys['train']['epochs'], keys['schedule']['epochs']) == (20, 25)


def test_two_folders_of_images_are_refused() -> None:
    words = '-c rec_mv3_none_bilstm_ctc -o Train.dataset.data_dir=a Eval.dataset.data_dir'
    with pytest.raises(ConfigError, match='Phalanx has one folder for both'):
        job(f'{words}=b')
    assert job(f'{words}=./a/')[1]['data']['root'] == './a/'


def test_lists_lie_in_the_working_folder_as_in_paddleocr() -> None:
    data = job('-c rec_chinese_lite_train_v2.0 -o Train.dataset.label_file_list=[lists/a.txt]')[1]['data']
    assert data['train'] == [str(Path('lists/a.txt').absolute())]


def test_of_a_network_nothing_is_set_by_keys_of_another_project() -> None:
    with pytest.raises(ConfigError, match='is of configurations of PaddleOCR, and has no counterpart in a recipe'):
        job('-c rec_mv3_none_bilstm_ctc -o Architecture.Backbone.scale=0.5')


def test_paths_behind_their_keys_may_have_any_characters() -> None:
    name = "it's #1\\n.txt"  # with a backslash, which has a meaning in YAML's double quotes, as ` #` has without
    Path(name).write_text('a\nb\n')
    keys = ('Global.character_dict_path={}', 'Global.pretrained_model={}', 'Train.dataset.label_file_list=[{}]')
    assigned, _ = for_recipe([(key.format(json.dumps(name)), key) for key in keys], Node({}, ''))
    values = {'.'.join(path): to_plain(node) for path, node in (parse_assignment(*each) for each in assigned)}
    assert (values['characters.dictionary'], values['train.init_from']) == (name, name)
    assert values['data.train'] == [str(Path.cwd() / name)]


@pytest.mark.parametrize(
    ('words', 'ours', 'notes'),
    [
        ('Global.amp_dtype=bfloat16 Global.use_amp=False', ['precision.dtype=fp32'], 1),
        ('Global.amp_dtype=bfloat16 Global.use_amp=True', ['precision.dtype=fp16', 'precision.dtype=bf16'], 0),
        ('Global.use_ema=False Global.ema_decay=0.9', ['ema=null'], 1),
        ('ema_decay=0.9 use_ema=False', ['ema=null'], 1),
        ('ema_decay=0.9 use_ema=True', ['ema={}', 'ema.decay=0.9'], 0),
        (
            'Global.use_dynamic_loss_scaling=True Global.scale_loss=8 Global.use_amp=True',
            ['precision.dtype=fp16', 'precision.loss_scale=8', 'precision.loss_scale=dynamic'],
            0,
        ),
        ('Global.use_dynamic_loss_scaling=False Global.use_amp=True', ['precision.loss_scale=1', 'precision.dtype=fp16'], 0),
        ('Global.use_dynamic_loss_scaling=False Global.scale_loss=8', ['precision.loss_scale=1', 'precision.loss_scale=8'], 0),
        ('Global.use_dynamic_loss_scaling=False Global.use_amp=False', ['precision.dtype=fp32'], 1),
    ],
)
def test_keys_have_an_effect_only_with_their_switch_in_whatever_order(words: str, ours: list[str], notes: int) -> None:
    assigned, ignored = for_recipe([(word, word) for word in words.split()], Node({}, 'recipe'))
    assert [text for text, _ in assigned] == ours
    assert len(ignored) == notes
    assert all('is ignored: it has an effect only with' in note for note in ignored)


@pytest.mark.parametrize('word', ['false', 'no', '0', 'False'])
def test_switches_of_options_can_be_off(word: str) -> None:
    line = f'unet_digits --use_vdl {word} --use_ema={word} --use_wandb {word} --use_gpu {word} --set report.visualdl=true'
    found = job(line)[0].recipe
    assert (found.ema, found.report.visualdl, found.device) == (None, False, 'cpu')
    assert 'wandb' not in found.report.tracker_builders()


def test_a_switch_that_is_neither_on_nor_off_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        job('unet_digits --use_ema=maybe')
    assert "--use_ema: expected true or false, got 'maybe'" in capsys.readouterr().err
