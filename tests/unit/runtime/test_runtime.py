"""The runtime computes in numpy what the families compute in torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnxruntime
import PIL.Image
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from phalanx.data.samples import Draw
from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.graph import add_suppression
from phalanx.families.detection.nms import NO_SUPPRESSION, Nms, multiclass_nms
from phalanx.families.detection.task import prepare_eval_sample
from phalanx.families.detection.transforms import Resize as DetectionResize
from phalanx.families.export import describe_transform
from phalanx.families.recognition.characters import Characters
from phalanx.families.recognition.models.outputs import Outputs, greedy_ctc
from phalanx.families.segmentation.inference import Inference, resize
from phalanx.families.segmentation.task import prepare_sample, undo_transforms
from phalanx.families.segmentation.transforms import Padding, Rescale, Resize, ResizeByLong
from phalanx.nn.layers import adaptive_avg_pool, pooling_matrix
from phalanx.runtime import ArtifactError, detection, recognition, segmentation
from phalanx.runtime.prepare import check_image, normalise, resize_maps
from phalanx.runtime.session import check_shape


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


IMAGE = rng().integers(0, 256, (53, 71, 3), np.uint8)
GREY = {'channels': 'RGB', 'mean': (0.5, 0.5, 0.5), 'std': (0.5, 0.5, 0.5)}
ONE_VIEW = asdict(Inference())
LIMITS: dict[str, Any] = {'score_threshold': 0.2, 'nms_threshold': 0.5, 'pre_top_k': 120, 'keep_top_k': 100}

TRANSFORMS = [
    [],
    [Resize(target_size=(48, 80))],
    [Rescale(factor=0.7)],
    [ResizeByLong(side=40), Padding(target_size=(64, 64))],
    [Padding(target_size=(30, 90)), Rescale(factor=1.5)],
]


def segmenter(transforms: list[Any], inference: dict[str, Any] = ONE_VIEW) -> segmentation.Segmentation:
    preparation = {'transforms': [describe_transform(each) for each in transforms], **GREY}
    return segmentation.Segmentation({'preparation': preparation, 'reading': {'inference': inference}})


@pytest.mark.parametrize('transforms', TRANSFORMS)
def test_images_are_segmented_as_in_evaluation(transforms: list[Any]) -> None:
    """The same bytes go in, and logits come back to the same place."""
    own, labels = segmenter(transforms), np.zeros(IMAGE.shape[:2], np.uint8)
    sample = prepare_sample(IMAGE, labels, transforms, rng(), keep_labels=True)
    seen = own.prepare(IMAGE)
    expected = sample.image.float() / 127.5 - 1
    if transforms and isinstance(transforms[-1], Padding):  # with the middle of the range, which is no byte
        height, width = sample.sizes_before[-1]
        expected[:, height:] = expected[:, :, width:] = 0
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    logits = rng().standard_normal((4, *seen.shape[1:])).astype(np.float32)
    back = undo_transforms(torch.from_numpy(logits), transforms, sample.sizes_before, labels.shape)
    assert (own.prediction({'logits': logits}, IMAGE) == back.argmax(0).numpy()).mean() > 0.999  # ties in the last bit


@pytest.mark.parametrize(
    'options',
    [
        {'window': (30, 40), 'window_stride': (20, 30)},
        {'scales': (0.5, 1.0, 1.5), 'flip_horizontal': True, 'flip_vertical': True},
        {'window': (30, 40), 'window_stride': (30, 40), 'scales': (1.25,), 'flip_horizontal': True},
    ],
)
def test_windows_scales_and_flips_are_those_of_evaluation(options: dict[str, Any]) -> None:
    """Seen by a network that mixes neighbours, so that the edges of windows show."""
    inference, network = Inference(**options), torch.nn.Conv2d(3, 5, 3, padding=1)
    images = rng().standard_normal((2, 3, 53, 71)).astype(np.float32)

    def run(seen: Any) -> dict[str, Any]:
        return {'logits': network(torch.from_numpy(seen)).detach().numpy()}

    with torch.no_grad():
        expected = inference(lambda seen: [network(seen)], torch.from_numpy(images))  # type: ignore[arg-type]
    found = segmenter([], asdict(inference)).outputs(run, images)['logits']
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize('size', [(20, 30), (53, 71), (99, 200)])
def test_maps_are_resized_as_torch_does_it(size: tuple[int, int]) -> None:
    maps = rng().standard_normal((3, 53, 71)).astype(np.float32)
    np.testing.assert_allclose(resize_maps(maps, *size), resize(torch.from_numpy(maps)[None], size)[0], atol=1e-4)


def test_a_transform_that_only_training_has_is_refused() -> None:
    with pytest.raises(ArtifactError, match='images went through RandomFlip in evaluation'):
        segmentation.size_after((2, 2), {'name': 'RandomFlip'})


@pytest.mark.parametrize(
    'resize',
    [DetectionResize(target_size=(96, 64)), DetectionResize(target_size=(120, 50), keep_ratio=True, interpolation='cubic')],
)
def test_images_are_searched_for_objects_as_in_evaluation(resize: DetectionResize) -> None:
    sample = prepare_eval_sample(IMAGE, Objects.none(), [resize], Draw(0, 0, 0, 0))
    preparation = {'transforms': [describe_transform(resize)], 'multiple_of': 32, 'fill': [1, 2, 3], **GREY}
    own = detection.Detection({'preparation': preparation, 'reading': {'classes': ['ball']}})
    seen = own.prepare(IMAGE)
    _, h, w = sample.image.shape
    assert seen.shape == (3, -(-h // 32) * 32, -(-w // 32) * 32)
    np.testing.assert_allclose(seen[:, :h, :w], sample.image.float() / 127.5 - 1, atol=1e-6)
    if w < seen.shape[2]:
        np.testing.assert_allclose(seen[:, 0, -1], np.array([1, 2, 3]) / 127.5 - 1, atol=1e-6)
    frame = np.array([[*sample.frame.numpy(), 0.5, 0]], np.float32)
    boxes = own.prediction({'detections': frame}, IMAGE).boxes
    np.testing.assert_allclose(boxes, [[0, 0, 71, 53]], atol=1e-4)


def scattered() -> tuple[Any, Any]:
    """200 boxes, five of them without area, and their scores for three classes."""
    draw = rng()
    corners = draw.uniform(0, 60, (200, 2))
    boxes = np.concatenate([corners, corners + draw.uniform(0, 40, (200, 2))], 1).astype(np.float32)
    boxes[:5, 2:] = boxes[:5, :2]
    return boxes, draw.uniform(0, 1, (200, 3)).astype(np.float32)


def test_overlapping_boxes_are_suppressed_as_by_torchvision() -> None:
    """With a limit on candidates and one on results."""
    boxes, scores = scattered()
    (expected,) = multiclass_nms(torch.from_numpy(boxes)[None], torch.from_numpy(scores)[None], Nms(**LIMITS))
    found = detection.suppress_boxes(boxes, scores, **LIMITS)
    assert len(found[0]) > 20
    for own, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, theirs.numpy())


def test_without_suppression_the_runtime_finds_what_evaluation_finds() -> None:
    boxes, scores = scattered()
    (expected,) = multiclass_nms(torch.from_numpy(boxes)[None], torch.from_numpy(scores)[None], NO_SUPPRESSION)
    for own, theirs in zip(detection.suppress_boxes(boxes, scores, **asdict(NO_SUPPRESSION)), expected, strict=True):
        np.testing.assert_array_equal(own, theirs.numpy())


def by_onnxruntime(model: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(['detections'], inputs)[0]


def by_openvino(model: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    openvino = pytest.importorskip('openvino')
    core = openvino.Core()
    network = core.read_model(model.SerializeToString(), b'')
    return core.compile_model(network, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})(inputs)['detections']


@pytest.mark.parametrize('found_by', [by_onnxruntime, by_openvino])
def test_the_graph_suppresses_boxes_as_evaluation_does(found_by: Any) -> None:
    """Behind a network that says what it is given."""
    boxes, scores = scattered()
    network = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> network (float[1, A, 4] b, float[1, A, K] s) => '
        '(float[1, A, 4] boxes, float[1, A, K] scores) { boxes = Identity (b)\n scores = Identity (s) }'
    )
    model = add_suppression(network, LIMITS)
    onnx.checker.check_model(model)
    found = found_by(model, {'b': boxes[None], 's': scores[None]})
    (expected,) = multiclass_nms(torch.from_numpy(boxes)[None], torch.from_numpy(scores)[None], Nms(**LIMITS))
    assert found.shape == (1, len(expected[0]), 6)
    for own, theirs in zip((found[0, :, :4], found[0, :, 4], found[0, :, 5]), expected, strict=True):
        np.testing.assert_array_equal(own, theirs.numpy())


def test_the_graph_chooses_the_characters_that_evaluation_reads() -> None:
    """`aab_bb` and the like: repetitions are left out, but not those with a blank between."""
    logits = torch.from_numpy(rng().standard_normal((3, 40, 4)).astype(np.float32))
    characters = Characters('abc', lower_case=False, max_length=40)
    expected = characters.decode(logits)
    assert all(len(reading.text) > 5 for reading in expected)
    numbers, probabilities = greedy_ctc(Outputs(logits))
    reader = recognition.Recognition({'preparation': {}, 'reading': {'characters': 'abc'}})
    found = [
        reader.prediction({'numbers': row.numpy(), 'probabilities': shares.numpy()}, IMAGE)
        for row, shares in zip(numbers, probabilities, strict=True)
    ]
    for own, theirs in zip(found, expected, strict=True):
        assert own.text == theirs.text
        assert own.confidence == pytest.approx(theirs.confidence)


@pytest.mark.parametrize(('H', 'W', 'cells'), [(7, 10, 4), (3, 2, 2), (8, 8, 4), (5, 9, 1)])
def test_adaptive_pooling_can_be_written_as_products(H: int, W: int, cells: int) -> None:
    """Matrix products replace it in an export, since ONNX has none."""
    x = torch.from_numpy(rng().standard_normal((2, 3, H, W)).astype(np.float32))
    rows, columns = (pooling_matrix(length, cells, x) for length in (H, W))
    torch.testing.assert_close(rows @ x @ columns.T, adaptive_avg_pool(x, cells), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize('channels', ['RGB', 'BGR'])
def test_values_of_pixels_are_normalised_to_the_last_bit(channels: str) -> None:
    """Each of the 256 values, computed one operation after the other in float32, as PaddleOCR does."""
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)
    pixels[..., 1] = pixels[::-1, :, 0]
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    floats = (pixels if channels == 'RGB' else pixels[..., ::-1]).astype(np.float32) / np.float32(255)
    found = normalise(pixels, {'channels': channels, 'mean': mean.tolist(), 'std': std.tolist()})
    np.testing.assert_array_equal(found, ((floats - mean) / std).transpose(2, 0, 1))


def test_an_image_of_pillow_that_is_not_upright_rgb_is_refused() -> None:
    sideways = PIL.Image.fromarray(IMAGE)
    sideways.getexif()[0x0112] = 6
    for image in (sideways, PIL.Image.fromarray(IMAGE).convert('HSV')):  # three channels of 8 bits, too
        with pytest.raises(ValueError, match=r"ImageOps\.exif_transpose\(image\)\.convert\('RGB'\)"):
            check_image(image)
    assert (check_image(PIL.Image.fromarray(IMAGE)) == IMAGE).all()


def test_the_memory_of_large_images_is_freed(tmp_path: Path) -> None:
    """16 maps of each image, of 64 to 85 MB, whose means are those of the image; onnxruntime may retain those of one."""
    given = helper.make_tensor_value_info('x', TensorProto.FLOAT, [1, 3, 'H', 'W'])
    made = helper.make_tensor_value_info('y', TensorProto.FLOAT, [1, 16, 1, 1])
    nodes = [helper.make_node('Conv', ['x', 'w'], ['maps']), helper.make_node('GlobalAveragePool', ['maps'], ['y'])]
    weights = [numpy_helper.from_array(np.full((16, 3, 1, 1), 1 / 3, np.float32), 'w')]
    graph = helper.make_graph(nodes, 'network', [given], [made], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9), tmp_path / 'network.onnx')
    # In a process of its own: another test's memory, freed meanwhile, would count.
    code = f"""if True:
        import os
        from pathlib import Path
        import numpy as np
        from phalanx.runtime import session
        resident = lambda: int(Path('/proc/self/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')
        session.MOST_RETAINED = 2**20
        _, _, run = session.open_with_onnxruntime(Path({str(tmp_path / 'network.onnx')!r}), 1)
        before = resident()
        for side in range(1000, 1160, 32):
            image = np.full((1, 3, side, side), 0.5, np.float32)
            means = run(image)['y']
        print(resident() - before, *means.ravel())
        session.MOST_IN_ARENA = 2**20
        print(*run(image)['y'].ravel())"""
    ended = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    (growth, *means), by_layers = ([float(word) for word in line.split()] for line in ended.stdout.splitlines())
    assert growth < 2 * 85e6
    assert means == pytest.approx([0.5] * 16, rel=1e-3)
    assert by_layers == pytest.approx(means, rel=1e-5)


@pytest.mark.parametrize(
    ('shape', 'fault'),
    [
        ([1, 3, 32, 64], 'takes height 32 and width 64 only, not an input of .*; export again with --dynamic height,width'),
        (['batch', 3, 'height', 64], 'takes width 64 only, .*; export again with --dynamic batch,height,width'),
        (['', 3, 48, ''], 'takes height 48 only, not an input of .*; export again with --dynamic batch,height,width'),
    ],
)
def test_an_input_of_another_size_is_refused_with_all_sizes_that_have_to_vary(shape: list[int | str], fault: str) -> None:
    with pytest.raises(ArtifactError, match=f'^model.onnx: {fault}$'):
        check_shape((1, 3, 40, 80), shape, Path('model.onnx'))
    check_shape((1, 3, 40, 80), [1, 3, 'height', 80], Path('model.onnx'))
