"""The command lines of the published documents, each with nothing but the module's name changed; then each
project's for real.
"""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from test_originals_paddledet import FILES as DETECTION
from test_originals_paddleocr import FILES as OCR
from test_originals_paddleseg import FILES as SEGMENTATION
from test_originals_pdseg import UNET_PET

import drawn
from phalanx.cli import launch as launching
from phalanx.cli.train import build_job, parse_command
from phalanx.config.read import to_plain
from phalanx.deploy.writing import ExportError
from phalanx.engine.job import Job
from phalanx.families.recognition.data.label_files import LabelFiles
from phalanx.families.recognition.data.lmdb_sets import write_lmdb
from phalanx.paddle.options import WEIGHTS, take_assigned, take_weights
from running import Command, records, run_here

PDSEG = (
    '--do_eval --cfg configs/unet_pet.yaml BATCH_SIZE 4 TRAIN.PRETRAINED_MODEL_DIR pretrained_model/unet_bn_coco SOLVER.LR 5e-5'
)
LISTS = 'TRAIN_FILE_LIST', 'VAL_FILE_LIST'
TINY = 'device=cpu train.steps=2 train.batch_size_per_rank=2 train.workers=0 evaluate.every=2 evaluate.every_epochs=null'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ('configs/rec', 'configs/det', 'configs/pp_liteseg', 'configs/ppyoloe'):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / 'configs/unet_pet.yaml').write_text(UNET_PET)
    for name, text in SEGMENTATION.items():
        (tmp_path / f'configs/pp_liteseg/{name}.yml').write_text(text.lstrip())
    (tmp_path / 'configs/rec/crnn.yml').write_text(OCR['crnn'])
    (tmp_path / 'configs/det/db.yml').write_text(OCR['db_mv3'])
    for name, text in DETECTION.items():
        (tmp_path / f'configs/ppyoloe/{name}.yml').write_text(text.lstrip())
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Capture the command that a launch would start, and its number of ranks."""
    found: list[Any] = []

    def launch(command: Sequence[str], cluster: Any, *_: Any, **__: Any) -> int:
        found.extend([list(command), cluster.ranks_per_node])
        return 0

    monkeypatch.setattr(launching, 'launch', launch)
    return found


def job(line: str) -> tuple[Job, dict[str, Any]]:
    job = build_job(*parse_command(shlex.split(line)))
    return job, to_plain(job.resolved)


@pytest.mark.parametrize(
    ('line', 'ranks'),
    [
        ('--nproc_per_node 2 --log_dir ./log train.py --config configs/pp_liteseg/liteseg.yml --do_eval --use_vdl', 2),
        ('--nproc_per_node 2 tools/train.py -c configs/rec/crnn.yml -o Global.epoch_num=1', 2),
        ('--nproc_per_node 2 tools/train.py -c configs/ppyoloe/ppyoloe.yml --eval', 2),
        (f'--nproc_per_node 2 pdseg/train.py --use_gpu {PDSEG}', 2),
    ],
)
def test_the_training_script_of_a_document_means_phalanx_train(folder: Path, started: list[Any], line: str, ranks: int) -> None:
    assert launching.command(shlex.split(line)) == 0
    script = next(word for word in line.split() if word.endswith('train.py'))
    own = shlex.split(line.partition(script)[2])
    assert started == [[sys.executable, '-m', 'phalanx', 'train', *own], ranks]
    build_job(*parse_command(own))


def test_a_clone_of_the_originals_is_shown_which_script_to_name(
    folder: Path, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / 'tools').mkdir()
    (folder / 'tools/train.py').write_text('import sys\nimport paddle.distributed as dist\n')
    assert launching.command(['--nproc_per_node', '2', 'tools/train.py', '-c', 'configs/rec/crnn.yml']) == 2
    message = capsys.readouterr().err
    assert "phalanx launch: tools/train.py is PaddlePaddle's own script" in message
    assert '-m phalanx train -c configs/rec/crnn.yml' in message
    assert not started


def test_options_of_paddleseg_mean_what_they_mean_there(folder: Path) -> None:
    line = '--config configs/pp_liteseg/liteseg.yml --save_interval 500 --num_workers 3 --batch_size 4 --iters 700 --use_vdl'
    _, got = job(f'{line} --do_eval --learning_rate 0.02 --log_iters 5 --seed 3 --keep_checkpoint_max 2 --save_dir output')
    assert (got['evaluate']['enabled'], got['evaluate']['every'], got['checkpoint']['every']) == (True, 500, 500)
    assert (got['train']['batch_size_per_rank'], got['train']['steps'], got['optimizer']['lr']) == (4, 700, 0.02)
    ohem = got['loss'][0]['min_kept_per_sample']
    assert 2 * ohem == job('configs/pp_liteseg/liteseg.yml --batch_size 2')[1]['loss'][0]['min_kept_per_sample']
    assert job(line)[1]['evaluate']['enabled'] is False  # without --do_eval
    assert got['report']['visualdl'] is True


def test_paddledetection_evaluates_on_request_and_paddleocr_always(folder: Path) -> None:
    assert job('-c configs/ppyoloe/ppyoloe.yml --eval')[1]['evaluate']['enabled'] is True
    assert job('-c configs/ppyoloe/ppyoloe.yml')[1]['evaluate']['enabled'] is False
    assert job('-c configs/ppyoloe/ppyoloe.yml -o evaluate.enabled=true')[1]['evaluate']['enabled'] is True
    assert job('-c configs/rec/crnn.yml')[1]['evaluate']['enabled'] is True


def test_an_option_with_a_value_that_may_be_left_out_takes_none_of_the_overrides(folder: Path) -> None:
    for options in ('--use_gpu', '--use_gpu --use_mpio', '--use_vdl'):
        pairs = 'BATCH_SIZE 4 SOLVER.LR 5e-5 MODEL.FP16 True MODEL.SCALE_LOSS 512.0'
        line = f'--do_eval --cfg configs/unet_pet.yaml {options} {pairs}'
        _, got = job(line)
        assert (got['train']['global_batch_size'], got['optimizer']['lr']) == (4, 5e-5)
        assert (got['precision']['dtype'], got['precision']['loss_scale']) == ('fp16', 512.0)
    assert job('--cfg configs/unet_pet.yaml --use_gpu false')[1]['device'] == 'cpu'


def test_checkpoints_of_paddleocr_are_resumed_or_evaluated(folder: Path) -> None:
    """`-o Global.checkpoints=` names what to go on with, as --resume does, and in tools/eval.py the weights."""
    given, _, assigned = parse_command(['-c', 'configs/rec/crnn.yml', '-o', 'Global.checkpoints=runs/a', 'Global.epoch_num=1'])
    assert given.resume == 'runs/a'
    assert [text for text, _ in assigned] == ['Global.epoch_num=1']
    (folder / 'best.pdparams').touch()
    words = [('Global.checkpoints=./best', ''), ('Global.pretrained_model=null', ''), ('Global.infer_img=a.jpg', '')]
    assert take_assigned(words, WEIGHTS) == (['./best.pdparams'], [words[2]])


def test_of_two_weights_the_checkpoints_count_as_in_paddleocr() -> None:
    """Its load_model reads Global.pretrained_model only without Global.checkpoints, in whatever order they are written."""
    words = [('Global.checkpoints=trained', ''), ('Global.pretrained_model=published', '')]
    for written in (words, words[::-1]):
        given = Namespace(weights=None)
        assert (take_weights(given, written), given.weights) == ([], 'trained')
    given = Namespace(weights='named')
    assert (take_weights(given, words), given.weights) == ([], 'named')


def test_the_keys_of_paddleocr_name_weights_images_and_folders_with_recipes_too(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ['-c', 'crnn_digits', '-o']
    given, _, assigned = parse_command([*recipe, 'Global.checkpoints=runs/a', 'train.steps=1'])
    assert (given.resume, [text for text, _ in assigned]) == ('runs/a', ['train.steps=1'])
    assert job('-c crnn_digits -o Global.pretrained_model=runs/a')[1]['train']['init_from'] == 'runs/a'
    (folder / 'w.pdparams').touch()
    assert run_here('train', *recipe, 'Global.checkpoints=w') == 2
    assert '--resume w.pdparams: is a file, not the state of a run; to start from these weights' in capsys.readouterr().err
    assert run_here('eval', *recipe, 'Global.checkpoints=gone') == 2
    assert 'gone: there is no such file, run folder' in capsys.readouterr().err
    cv2.imwrite('line.png', np.full((32, 64, 3), 255, np.uint8))
    assert run_here('predict', *recipe, 'Global.pretrained_model=gone', 'Global.infer_img=line.png') == 2
    assert 'gone: there is no such file, run folder' in capsys.readouterr().err
    written: list[Path] = []

    def write(_: Job, out: Path, options: Any) -> None:
        written.append(out)
        raise ExportError('as far as this test goes')

    monkeypatch.setattr('phalanx.cli.export.export', write)
    monkeypatch.setattr('phalanx.cli.export.describe_weights', lambda job, weights, raw: weights)
    assert run_here('export', *recipe, 'Global.pretrained_model=runs/a', 'Global.save_inference_dir=c/d') == 1
    assert written == [Path('c/d/model.onnx')]
    assert 'weights: runs/a' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('script', 'command'),
    [('tools/infer_rec.py', 'predict'), ('tools/eval.py', 'eval'), ('tools/export_model.py', 'export'), ('val.py', 'eval')],
)
def test_a_script_that_is_not_here_is_refused_with_the_command_for_it(
    folder: Path, capsys: pytest.CaptureFixture[str], script: str, command: str
) -> None:
    assert run_here('launch', script, '-c', 'configs/rec/crnn.yml') == 2
    assert f'{script}: there is no such script; `phalanx {command}` takes the same words' in capsys.readouterr().err


def test_images_and_weights_of_tools_infer_are_those_of_predict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / 'dict.txt').write_text('a\nb\n')
    words = ['-c', 'configs/rec/crnn.yml', '-o', 'Global.infer_img=a.jpg', 'Global.pretrained_model=./best']
    assert run_here('predict', *words) == 2
    assert 'a.jpg: there is no such file' in capsys.readouterr().err
    assert run_here('predict', '-c', 'configs/rec/crnn.yml') == 2
    assert 'which images? give files or folders after the run' in capsys.readouterr().err
    assert run_here('export', *words[:3], 'Global.pretrained_model=./best', '--no_check', '--image_size', '32,100') == 2
    assert 'best' in capsys.readouterr().err


def test_what_differs_on_purpose_is_known_to_the_run(folder: Path) -> None:
    message = '\n'.join(job('--config configs/pp_liteseg/liteseg.yml')[0].differs)
    assert 'differs from PaddleSeg on purpose: a loss is the mean over the samples of all ranks' in message
    assert 'norm_sync: global' in message


@pytest.mark.long
def test_the_document_of_mixed_precision_runs_on_two_ranks(folder: Path, phalanx: Command) -> None:
    """Its command at its full set of options, made small by overrides at its end; a static loss scale."""
    (folder / 'dataset/mini_pet').mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(4):
        cv2.imwrite(str(folder / f'dataset/mini_pet/{number}.jpg'), rng.integers(0, 255, (32, 32, 3), dtype=np.uint8))
        cv2.imwrite(str(folder / f'dataset/mini_pet/{number}.png'), rng.integers(0, 3, (32, 32), dtype=np.uint8))
    (folder / 'pairs.txt').write_text(''.join(f'{number}.jpg {number}.png\n' for number in range(4)))
    small = 'SOLVER.NUM_EPOCHS 1 AUG.FIX_RESIZE_SIZE (32,32) TRAIN_CROP_SIZE (32,32) EVAL_CROP_SIZE (32,32) train.workers 0'
    lists = ' '.join(f'DATASET.{name} pairs.txt' for name in LISTS)
    half = 'MODEL.FP16 True MODEL.SCALE_LOSS 512.0'
    options = f'--use_gpu false --use_mpio {PDSEG} {half} {small} {lists}'
    done = phalanx('launch', '--nproc_per_node', '2', '--log_dir', 'log', 'pdseg/train.py', *shlex.split(options))
    assert done.returncode == 0, done.stdout + done.stderr
    (evaluated,) = records(folder / 'runs/unet_pet', 'eval')
    assert 'mean_iou' in evaluated
    for row in ('world size', 'samples/s', 'peak memory', 'mean_iou'):  # the columns of the document's table
        assert row in done.stdout
    assert 'differs from PaddleSeg 0.x on purpose: a loss is the mean over the samples of all ranks' in done.stdout


def cityscapes(root: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(4):
        for split in ('train', 'val'):
            image = root / f'leftImg8bit/{split}/bonn/{number}_leftImg8bit.png'
            labels = root / f'gtFine/{split}/bonn/{number}_gtFine_labelTrainIds.png'
            for path, pixels in (image, rng.integers(0, 255, (64, 96, 3))), (labels, rng.integers(0, 19, (64, 96))):
                path.parent.mkdir(parents=True, exist_ok=True)
                cv2.imwrite(str(path), pixels.astype(np.uint8))


def words(root: Path) -> None:
    """In the databases of the text recognition benchmark, as PaddleOCR's configuration names them."""
    pytest.importorskip('lmdb')
    files = root.parent / 'lines'
    files.mkdir()
    for number in range(4):
        cv2.imwrite(str(files / f'{number}.png'), np.full((32, 100, 3), 60 * number, np.uint8))
    for name in ('rec_gt_train.txt', 'rec_gt_test.txt'):
        (files / name).write_text(''.join(f'{number}.png\tword{number}\n' for number in range(4)))
    for name in ('training', 'validation'):
        write_lmdb(LabelFiles(root=files).split('train'), root / name)


def pages(root: Path) -> None:
    drawn.pages_paddle(root)
    for split in ('train', 'test'):
        (root / f'{split}_icdar2015_label.txt').write_text((root / 'Label.txt').read_text())


@pytest.mark.parametrize(
    ('line', 'root', 'fill', 'small', 'metric'),
    [
        pytest.param(
            '--gpus 0,1 --log_dir ./log train.py --config configs/pp_liteseg/liteseg.yml'
            ' --do_eval --use_vdl --save_interval 500 --save_dir output/it',
            'data/cityscapes',
            cityscapes,
            'model.backbone.pretrained=null model.width=0.25 transforms=[random_flip]',
            'mean_iou',
            id='PaddleSeg',
        ),
        pytest.param(
            '--ips=127.0.0.1 --gpus 0,1 --log_dir=./log/ tools/train.py -c configs/rec/crnn.yml --save_dir output/it',
            'data_lmdb_release',
            words,
            'Architecture.Backbone.model_name=small',
            'accuracy',
            id='PaddleOCR',
            marks=pytest.mark.long,
        ),
        pytest.param(
            '--ips=127.0.0.1 --gpus 0,1 --log_dir=./log/ tools/train.py -c configs/det/db.yml --save_dir output/it',
            'train_data/icdar2015/text_localization',
            pages,
            'Global.pretrained_model=null Architecture.Backbone.scale=0.35 Architecture.Neck.out_channels=24'
            ' "transforms=[{name: random_crop, crop_size: [64, 64]}]" "eval_transforms=[{name: limit_side, side: 32}]"',
            'hmean',
            id='PaddleOCR, text detection',
            marks=pytest.mark.long,
        ),
        pytest.param(
            '--selected_gpu 0,1 --log_dir ./log tools/train.py -c configs/ppyoloe/ppyoloe.yml --eval --save_dir output/it',
            'dataset/coco',
            drawn.coco,
            'pretrain_weights=null TrainDataset.image_dir=pictures TrainDataset.anno_path=instances_train.json'
            ' EvalDataset.image_dir=pictures EvalDataset.anno_path=instances_val.json '
            ' "transforms=[{name: batch_random_resize, sizes: [64]}]"'
            ' "eval_transforms=[{name: resize, target_size: [64, 64]}]"',
            'mean_ap',
            id='PaddleDetection',
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_command_of_each_document_runs_on_two_ranks(
    folder: Path, phalanx: Command, line: str, root: str, fill: Callable[[Path], object], small: str, metric: str
) -> None:
    """At its full set of options, made small by overrides at its end, each project's own keys among them."""
    fill(folder / root)
    done = phalanx('launch', *line.split(), '-o', *shlex.split(small), *TINY.split())
    assert done.returncode == 0, done.stdout + done.stderr
    (evaluated,) = records(folder / 'output/it', 'eval')
    assert metric in evaluated
    assert {number.name for number in (folder / 'log').iterdir()} >= {'workerlog.0', 'workerlog.1'}
    for row in ('world size', 'samples/s', metric):
        assert row in done.stdout
