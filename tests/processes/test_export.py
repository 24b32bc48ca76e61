"""An exported network computes what the trained one computes, and its guide says all that is needed to use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from torchvision.ops import nms

import phalanx.cli.export
from phalanx import load_run
from phalanx.data.samples import Image
from phalanx.deploy.export import calibration, compare
from phalanx.deploy.writing import ExportError
from phalanx.engine.job import open_job
from phalanx.families.export import Export
from phalanx.system.errors import RequestError

Outputs = dict[str, npt.NDArray[np.float32]]
Use = Callable[[Image, dict[str, Any], Callable[[npt.NDArray[np.float32]], Outputs]], Any]


def normal(image: Image, guide: dict[str, Any]) -> npt.NDArray[np.float32]:
    """[H, W, 3] RGB -> [1, 3, H, W], by what the guide says."""
    prepared = guide['preparation']
    assert prepared['channels'] in ('RGB', 'BGR')
    channels = image if prepared['channels'] == 'RGB' else image[:, :, ::-1]
    values = (channels / 255 - np.array(prepared['mean'])) / np.array(prepared['std'])
    return values.astype(np.float32).transpose(2, 0, 1)[None]


def segment(image: Image, guide: dict[str, Any], run: Callable[[npt.NDArray[np.float32]], Outputs]) -> Any:
    assert guide['preparation']['transforms'] == []
    assert guide['reading']['classes'][1:] == [str(digit) for digit in range(10)]
    return run(normal(image, guide))['logits'][0].argmax(0).tolist()


def detect(image: Image, guide: dict[str, Any], run: Callable[[npt.NDArray[np.float32]], Outputs]) -> Any:
    """The five most probable objects: (class, corners in whole pixels)."""
    outputs, found = run(normal(image, guide)), []
    limits = guide['reading']['nms']
    for label, scores in enumerate(outputs['scores'][0].T):
        boxes = outputs['boxes'][0]
        likely = scores > limits['score_threshold']
        kept = nms(torch.from_numpy(boxes[likely]), torch.from_numpy(scores[likely]), limits['nms_threshold']).numpy()
        found += [(scores[likely][n], guide['reading']['classes'][label], boxes[likely][n]) for n in kept]
    H, W = image.shape[:2]
    best = sorted(found, key=lambda one: -one[0])[:5]
    return [(name, np.rint(box.clip(0, [W, H, W, H])).tolist()) for _, name, box in best]


def read(image: Image, guide: dict[str, Any], run: Callable[[npt.NDArray[np.float32]], Outputs]) -> Any:
    H, W = guide['preparation']['image_size']
    width = min(W, -(-H * image.shape[1] // image.shape[0]))
    seen = np.zeros((1, 3, H, W), np.float32)
    seen[..., :width] = normal(cv2.resize(image, (width, H)), guide)
    places = run(seen)['logits'][0].argmax(1)
    kept = [number for number, before in zip(places, [-1, *places[:-1]], strict=True) if number != before]
    first = guide['reading']['first_character']
    return ''.join(guide['reading']['characters'][number - first] for number in kept if number != guide['reading']['blank'])


def structure(image: Image, guide: dict[str, Any], run: Callable[[npt.NDArray[np.float32]], Outputs]) -> Any:
    side = guide['input']['shape'][2]
    H, W = (int(length * side / max(image.shape[:2])) for length in image.shape[:2])
    seen = np.zeros((1, 3, side, side), np.float32)
    seen[..., :H, :W] = normal(cv2.resize(image, (W, H)), guide)
    output = run(seen)['probabilities'][0].argmax(1).tolist()
    end = guide['reading']['end']
    length = output.index(end, 1) if end in output[1:] else len(output)
    return [guide['reading']['tokens'][number] for number in output[:length] if number not in (0, end)]


USES: dict[str, tuple[Use, Callable[[Any], Any], tuple[int, int]]] = {  # our own result in the same form; size of an image
    'segmentation': (segment, lambda result: result.tolist(), (64, 96)),
    'detection': (detect, lambda result: [(one.name, np.rint(one.box).tolist()) for one in result[:5]], (64, 96)),
    'recognition': (read, lambda result: result.text, (40, 60)),
    'table': (structure, lambda result: list(result.structure), (50, 70)),
}


@pytest.mark.parametrize(
    'family', [pytest.param(each, marks=() if each == 'recognition' else pytest.mark.long) for each in USES]
)
def test_the_commands_of_the_written_readme_give_the_results_of_the_run(
    family: str, family_runs: dict[str, Path], exported: Callable[[str], Path]
) -> None:
    """Prepared and read here by numpy, OpenCV and torchvision, from what the guide says alone."""
    run, file = family_runs[family], exported(family)
    guide = json.loads(file.with_suffix('.json').read_text())
    assert guide['task'] == family
    assert guide['file'] == file.name
    assert 0 <= max(guide['largest_differences'].values()) < 1e-4

    session = onnxruntime.InferenceSession(file)
    assert json.loads(session.get_modelmeta().custom_metadata_map['phalanx']) == guide
    names = [output['name'] for output in guide['outputs']]

    def network(images: npt.NDArray[np.float32]) -> Outputs:
        return dict(zip(names, session.run(names, {guide['input']['name']: images}), strict=True))

    use, form, (H, W) = USES[family]
    image = np.random.default_rng(0).integers(0, 256, (H, W, 3), np.uint8)
    expected = form(load_run(run, device='cpu')(image))
    assert len(expected) > 0
    assert use(image, guide, network) == expected


@pytest.mark.long
def test_a_file_for_torch_gives_the_outputs_of_the_network(family_runs: dict[str, Path], tmp_path: Path) -> None:
    file, run = tmp_path / 'net.pt2', family_runs['segmentation']
    assert phalanx.cli.export.command([str(run), '--format', 'torch_export', '--out', str(file)]) == 0
    about = {'phalanx.json': ''}
    network = torch.export.load(file, extra_files=about).module()
    guide = json.loads(about['phalanx.json'])
    assert guide == json.loads(file.with_suffix('.json').read_text())
    assert [output['shape'] for output in guide['outputs']] == [['batch', 11, 'height', 'width']]
    image = np.random.default_rng(0).integers(0, 256, (128, 160, 3), np.uint8)
    classes = network(torch.from_numpy(normal(image, guide))).argmax(1)[0].numpy()
    assert (classes == load_run(run, device='cpu')(image)).mean() > 0.999  # two may be equally likely
    with pytest.raises(RequestError, match='--format torch_export is the network in fp32 alone'):
        phalanx.cli.export.command([str(run), '--format', 'torch_export', '--precision', 'int8'])


def test_a_file_without_variable_sizes_takes_one_image_of_one_size(family_runs: dict[str, Path], tmp_path: Path) -> None:
    file, run = tmp_path / 'net.onnx', family_runs['segmentation']
    assert phalanx.cli.export.command([str(run), '--dynamic', 'none', '--image_size', '64,96', '--out', str(file)]) == 0
    session = onnxruntime.InferenceSession(file)
    assert session.get_inputs()[0].shape == [1, 3, 64, 96]
    assert session.get_outputs()[0].shape == [1, 11, 64, 96]


def test_a_size_that_the_network_cannot_take_is_refused(family_runs: dict[str, Path], tmp_path: Path) -> None:
    """PP-YOLOE halves its input five times."""
    with pytest.raises(RequestError, match=r'the network does not accept images of height 50 and width 80: .* multiples of 32'):
        phalanx.cli.export.command(
            [str(family_runs['detection']), '--image_size', '50,80', '--out', str(tmp_path / 'net.onnx')]
        )
    assert list(tmp_path.iterdir()) == []


def test_integers_are_calibrated_on_training_images_as_the_file_takes_them(family_runs: dict[str, Path]) -> None:
    job = open_job(str(family_runs['detection']))
    exported = job.task.export(job.task.model())
    images = list(calibration(job, exported, ['batch', 3, 'height', 'width']))
    assert len(images) == 8  # all of the training split
    assert {image.shape for image in images} == {(3, 64, 96)}
    assert {image.shape for image in calibration(job, exported, [1, 3, 32, 'width'])} == {(3, 32, 96)}


def test_operators_that_are_too_old_are_refused() -> None:
    with pytest.raises(RequestError, match=r'--opset 9: torch writes ONNX operators of version 18 to \d+ only'):
        phalanx.cli.export.command(['runs/any', '--opset', '9'])


def test_missing_packages_are_named_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phalanx.cli.export, 'NEEDED', ('onnx', 'no_such_package'))
    with pytest.raises(RequestError, match=r'export needs no_such_package: pip install "phalanx-vision\[export\]"'):
        phalanx.cli.export.command(['runs/any'])


@pytest.mark.parametrize('wrong', [1.001, float('nan')])
def test_a_file_that_computes_something_else_is_refused(wrong: float) -> None:
    exported = Export(torch.nn.Identity(), {'scores': ''}, {}, {}, {})
    right = np.array([1.0, 2.0], np.float32)
    assert compare(exported, [[right]], [[right + np.float32(3e-5)]])['scores'] == pytest.approx(1.5e-5, rel=0.01)
    chosen = np.arange(10_000)
    assert compare(exported, [[chosen]], [[np.where(chosen == 7, 0, chosen)]])['scores'] == 1e-4  # one in ten thousand: a tie
    with pytest.raises(ExportError, match=r'scores by 5\.0e-01, above'):
        compare(exported, [[chosen]], [[chosen * (chosen % 2)]])
    with pytest.raises(ExportError, match='the file differs from the network in scores by'):
        compare(exported, [[right]], [[np.array([wrong, 2.0], np.float32)]])


def test_queries_may_come_in_another_order_but_none_may_be_missing_wrong_or_twice() -> None:
    exported = Export(torch.nn.Identity(), {'boxes': '', 'scores': ''}, {}, {}, {}, is_set=True)
    boxes = np.array([[[0, 0, 8, 8], [4, 4, 9, 9], [0, 0, 8, 8]]], np.float32)  # the same box for two classes
    scores = np.array([[[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]], np.float32)

    def file(*rows: int) -> list[np.ndarray]:
        return [boxes[:, list(rows)], scores[:, list(rows)]]

    assert compare(exported, [[boxes, scores]], [file(2, 0, 1)]) == {'boxes': 0, 'scores': 0}
    for rows in ((0, 1, 1), (1, 1, 1)):
        with pytest.raises(ExportError, match='the file differs from the network in'):
            compare(exported, [[boxes, scores]], [file(*rows)])
    with pytest.raises(ExportError, match='the file differs from the network in'):
        compare(exported, [file(0, 1, 1)], [[boxes, scores]])
    with pytest.raises(ExportError, match='scores by nan'):
        compare(exported, [[boxes, scores]], [[boxes, scores * np.float32(np.nan)]])
    ordered = Export(torch.nn.Identity(), exported.outputs, {}, {}, {})
    with pytest.raises(ExportError, match='the file differs from the network in'):
        compare(ordered, [[boxes, scores]], [file(2, 0, 1)])


def test_where_a_network_rounds_places_some_queries_may_differ_but_not_most() -> None:
    """RT-DETRv2 with discrete sampling: each of thousands of places is half-way between two pixels now and then."""
    exported = Export(torch.nn.Identity(), {'scores': ''}, {}, {}, {}, is_set=True, is_rounded=True)
    scores = np.linspace(0, 1, 30, dtype=np.float32).reshape(1, 10, 3)
    for count in (4, 6):
        moved = scores.copy()
        moved[:, :count, 0] += 2e-3
        if count < 5:
            assert compare(exported, [[scores]], [[moved]])['scores'] == pytest.approx(2e-3)
        else:
            with pytest.raises(ExportError, match='the file differs from the network in scores'):
                compare(exported, [[scores]], [[moved]])
    scores[0, 0, 0] = np.nan
    with pytest.raises(ExportError, match='scores by nan'):
        compare(exported, [[moved]], [[scores]])


@pytest.mark.parametrize(('sampling', 'rounds'), [('bilinear', False), ('discrete', True)])
def test_a_detector_that_samples_single_pixels_says_so(sampling: str, rounds: bool, tmp_path: Path) -> None:
    keys = (f'model={{name: rtdetrv2, size: r18vd, sampling: {sampling}}}', 'data.classes=[a, b]')
    task = open_job('rtdetrv2_r18vd_dsp_3x_coco', [(key, key) for key in keys], tmp_path).task
    assert task.export(task.model()).is_rounded == rounds
