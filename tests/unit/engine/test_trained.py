"""Phalanx from Python: `phalanx.train`, and what `phalanx.load_run` gives."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import yaml

import phalanx
from phalanx.data.samples import Image
from phalanx.data.video import Video, VideoWriter
from phalanx.deploy.predict import predict_video
from phalanx.engine.job import open_job
from phalanx.system.errors import RequestError, StoppedError
from running import TINY, losses, run_here

MORE = ('data.train_scenes=8', 'data.eval_scenes=2', 'train.global_batch_size=2', 'train.steps=2')
OVERRIDES: dict[str, Any] = {key: yaml.safe_load(value) for key, value in (word.split('=', 1) for word in (*TINY[2:], *MORE))}


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('python') / 'run'


@pytest.fixture(scope='module')
def trained(folder: Path) -> phalanx.Trained:
    return phalanx.train('pp_liteseg_digits', save_dir=folder, overrides=OVERRIDES)


def noise(height: int, width: int) -> Image:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def test_training_from_python_gives_what_the_command_gives(trained: phalanx.Trained, folder: Path, tmp_path: Path) -> None:
    assert run_here('train', *TINY, *MORE, '--save_dir', str(tmp_path / 'run')) == 0
    assert losses(folder) == losses(tmp_path / 'run')
    image = noise(64, 96)
    assert (trained(image) == phalanx.load_run(tmp_path / 'run', device='cpu')(image)).all()


def test_a_trained_model_says_what_it_is(trained: phalanx.Trained, folder: Path) -> None:
    assert trained.class_names == ('background', *'0123456789')
    assert (trained.step, trained.weights) == (2, f'{folder}, step 2 (best), as trained')
    assert repr(trained) == f'<Trained: {folder}, step 2 (best), as trained>'
    other = phalanx.load_run(folder, weights=folder / 'best' / 'model.safetensors', device='cpu')
    assert (other.step, other.weights) == (None, str(folder / 'best' / 'model.safetensors'))


def test_a_list_of_images_gives_the_results_of_each(trained: phalanx.Trained) -> None:
    images = [noise(64, 96), noise(64, 96)[::-1].copy(), noise(96, 64), noise(64, 96)]
    together = trained(images)
    assert [result.shape for result in together] == [(64, 96), (64, 96), (96, 64), (64, 96)]
    for image, result in zip(images, together, strict=True):
        assert (result == trained(image)).mean() > 0.99  # kernels for larger batches add in another order
    assert trained([]) == []


def test_a_run_continues_with_other_settings_on_request(trained: phalanx.Trained, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / 'run', symlinks=True)
    stop, longer = threading.Event(), {**OVERRIDES, 'train.steps': 9}
    stop.set()  # that it continues is enough
    with pytest.raises(RequestError, match=r'holds a run of another recipe:\n +train\.steps: there 2, now 9'):
        phalanx.train('pp_liteseg_digits', save_dir=tmp_path / 'run', overrides=longer, stop=stop)
    with pytest.raises(StoppedError):
        phalanx.train('pp_liteseg_digits', save_dir=tmp_path / 'run', overrides=longer, stop=stop, resume='auto')
    assert 'resumed at step 2 from' in (tmp_path / 'run' / 'journal.jsonl').read_text()


def test_a_batch_has_at_least_one_image(trained: phalanx.Trained) -> None:
    with pytest.raises(ValueError, match='batch_size must be at least 1, got 0'):
        trained([noise(64, 96)], batch_size=0)


def test_a_result_is_drawn_on_its_image(trained: phalanx.Trained) -> None:
    image = np.zeros((64, 96, 3), np.uint8)
    drawn = trained.draw(image, np.ones((64, 96), np.uint8))
    assert drawn.shape == image.shape
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) == 1
    assert drawn.any()


def test_a_video_comes_back_with_results_on_each_frame_and_patterns_are_followed(
    trained: phalanx.Trained, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with VideoWriter(tmp_path / 'clip.mp4', 5.0) as video:
        for _ in range(3):
            video.write(noise(64, 96))
    for name in ('a.png', 'b.png'):
        PIL.Image.fromarray(noise(64, 96)).save(tmp_path / name)
    (tmp_path / 'broken.mp4').write_bytes(b'not a video')
    words = ('--out', str(tmp_path / 'out'), '--set', 'device=cpu')
    assert run_here('predict', str(folder), str(tmp_path / '?.png'), str(tmp_path / 'clip.mp4'), *words) == 0
    assert capsys.readouterr().out.startswith('2 images and 3 frames predicted')
    written = Video(tmp_path / 'out' / 'clip.mp4')
    assert ([frame.shape for frame in written], written.rate) == ([(64, 96, 3)] * 3, 5.0)
    assert run_here('predict', str(folder), str(tmp_path / 'broken.mp4'), *words) == 1
    assert 'broken.mp4: is not a video that OpenCV can read' in capsys.readouterr().err


def test_a_video_that_was_cut_off_is_noted(trained: phalanx.Trained, folder: Path, tmp_path: Path, capsys: Any) -> None:
    with VideoWriter(tmp_path / 'whole.avi', 5.0) as video:
        for _ in range(10):
            video.write(noise(64, 96))
    data = (tmp_path / 'whole.avi').read_bytes()
    (tmp_path / 'cut.avi').write_bytes(data[: len(data) // 2])
    words = ('--out', str(tmp_path / 'out'), '--set', 'device=cpu')
    assert run_here('predict', str(folder), str(tmp_path / 'whole.avi'), str(tmp_path / 'cut.avi'), *words) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if 'its header states' in line]
    assert note.startswith(f'note: {tmp_path}/cut.avi: ')
    assert note.endswith('frames, and its header states 10: the file was cut off, or trimmed without encoding it again')


def test_paths_come_from_standard_input_and_results_are_written_as_asked(
    trained: phalanx.Trained, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with VideoWriter(tmp_path / 'clip.mp4', 5.0) as video:
        for _ in range(2):
            video.write(noise(64, 96))
    PIL.Image.fromarray(noise(64, 96)).save(tmp_path / 'a b.png')
    monkeypatch.setattr('sys.stdin', io.StringIO(f'{tmp_path}/a b.png\n\n{tmp_path}/clip.mp4\n'))
    words = ('--out', str(tmp_path / 'out'), '--save', 'json,masks', '--set', 'device=cpu')
    assert run_here('predict', str(folder), '-', *words) == 0
    assert capsys.readouterr().out.startswith('1 image and 2 frames predicted')
    written = sorted(str(file.relative_to(tmp_path / 'out')) for file in (tmp_path / 'out').rglob('*.*'))
    assert written == ['a b.json', 'a b.png', *(f'clip/00000{n}.{way}' for n in (1, 2) for way in ('json', 'png'))]


def test_labels_lie_beside_images_and_frames_and_pages_get_a_picture(
    trained: phalanx.Trained, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = [PIL.Image.fromarray(noise(64, 96))] * 2
    (tmp_path / 'in').mkdir()
    pictures[0].save(tmp_path / 'in' / 'a.png')
    pictures[0].save(tmp_path / 'many.tif', save_all=True, append_images=pictures[1:])
    with VideoWriter(tmp_path / 'clip.mp4', 5.0) as video:
        video.write(noise(64, 96))
    before = {file: file.read_bytes() for file in tmp_path.rglob('*.*')}
    words = ('predict', str(folder), str(tmp_path), '--out', str(tmp_path), '--save', 'labelme', '--set', 'device=cpu')
    assert run_here(*words) == 0
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob('*.*') if file not in before}
    places = ('in/a', 'many-p0001', 'many-p0002', 'clip/000001')
    assert files == {*(f'{place}.json' for place in places), *(f'{place}.jpg' for place in places[1:])}
    assert before == {file: file.read_bytes() for file in before}
    capsys.readouterr()
    assert run_here(*words[:-4], '--save', 'masks') == 2
    assert 'could take its place' in capsys.readouterr().err


def test_ctrl_c_ends_a_camera_and_its_video_is_whole(trained: phalanx.Trained, folder: Path, tmp_path: Path) -> None:
    def camera() -> Iterator[Image]:
        yield from [noise(64, 96)] * 3
        raise KeyboardInterrupt

    writers = open_job(str(folder)).task.writers
    assert predict_video(trained, writers, camera(), 5.0, tmp_path / 'camera0.mp4', (), endless=True) == 3
    assert len([*Video(tmp_path / 'camera0.mp4')]) == 3
    with pytest.raises(KeyboardInterrupt):  # of a file it ends the command
        predict_video(trained, writers, camera(), 5.0, tmp_path / 'file.mp4', (), endless=False)


def test_a_missing_camera_is_reported(trained: phalanx.Trained, folder: Path, tmp_path: Path, capsys: Any) -> None:
    assert run_here('predict', str(folder), '987', '--out', str(tmp_path), '--set', 'device=cpu') == 1
    assert 'skipped: camera 987: OpenCV gets no picture from it; this node has ' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('run', 'more', 'message'),
    [
        (
            'ppyoloe_digits',
            ('--save', 'json,cropps'),
            "--save: 'cropps' is not one of json, txt, crops, pictures, voc, labelme",
        ),
        ('crnn_digits', ('--save', 'crops'), "--save: 'crops' is not one of txt, json, pictures"),
        ('pp_liteseg_digits', ('--threshold', '0.5'), '--threshold: a segmentation has no objects with scores'),
        ('db_pages', ('--threshold', '0.5'), '--threshold: for texts, --set post_processing.box_threshold=0.5'),
        ('ppyoloe_digits', ('--threshold', '5'), '--threshold: a score is between 0 and 1, got 5'),
        ('ppyoloe_digits', ('none/*.jpg',), 'none/*.jpg: no file or folder matches'),
    ],
)
def test_a_wrong_request_to_predict_is_reported(run: str, more: tuple[str, ...], message: str, capsys: Any) -> None:
    assert run_here('predict', run, *more, 'README.md', '--out', 'results') == 2
    assert message in capsys.readouterr().err


def test_the_package_lists_its_public_names() -> None:
    assert {'Trained', 'create_model', 'evaluate', 'load_run', 'train'} <= {*dir(phalanx)}
