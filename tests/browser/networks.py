"""Exported files of every family whose results are constant, or follow from the grey of the image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
from onnx import TensorProto, numpy_helper

ONE_VIEW = {'window': None, 'window_stride': None, 'scales': [1.0], 'flip_horizontal': False, 'flip_vertical': False}
PLAIN = {'transforms': [], 'channels': 'RGB', 'mean': [0, 0, 0], 'std': [1, 1, 1]}
TEXTS = {'threshold': 0.3, 'box_threshold': 0.4, 'max_candidates': 100, 'unclip_ratio': 0.0, 'shape': 'quad'}
TOKENS = ['start', '<tr>', '</tr>', '<td></td>', '<td', ' colspan="2"', '>', '</td>', 'end']
NMS = {'score_threshold': 0.1, 'nms_threshold': 0.9, 'pre_top_k': 100, 'keep_top_k': 100}


def export(folder: Path, task: str) -> Path:
    """Write the file of a family into `folder`, a run named `first try`."""
    nodes, outputs, guide = globals()[task]()
    folder.mkdir(parents=True)
    images = onnx.helper.make_tensor_value_info('images', TensorProto.FLOAT, ['B', 3, 'H', 'W'])
    found = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    network = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, task, [images], found), opset_imports=[onnx.helper.make_opsetid('', 18)], ir_version=9
    )
    metric = {'name': 'quality', 'value': 0.875, 'step': 1200}
    shared = {
        'format': 1,
        'phalanx': '0',
        'run': 'first try',
        'task': task,
        'model': 'constant',
        'recipe': '',
        'metric': metric,
    }
    described = {**shared, 'input': {'shape': [1, 3, 'H', 'W']}, **guide}
    onnx.helper.set_model_props(network, {'phalanx': json.dumps(described)})
    onnx.save(network, folder / 'model.onnx')
    return folder / 'model.onnx'


def constant(name: str, values: Any) -> Any:
    return onnx.helper.make_node('Constant', [], [name], value=numpy_helper.from_array(np.asarray(values), name))


def segmentation() -> tuple[list[Any], Mapping[str, int], dict[str, Any]]:
    """Class 1 (`leaf`) where a pixel is bright, else background."""
    nodes = [
        constant('axes', np.int64([1])),
        onnx.helper.make_node('ReduceMean', ['images', 'axes'], ['grey'], keepdims=0),
        constant('middle', np.float32(0.5)),
        onnx.helper.make_node('Greater', ['grey', 'middle'], ['bright']),
        onnx.helper.make_node('Cast', ['bright'], ['classes'], to=TensorProto.UINT8),
    ]
    guide = {'preparation': PLAIN, 'reading': {'classes': ['background', 'leaf'], 'inference': ONE_VIEW}}
    return nodes, {'classes': TensorProto.UINT8}, guide


def detection() -> tuple[list[Any], Mapping[str, int], dict[str, Any]]:
    """Two neighbours at the upper edge, whose labels must not cover each other, and one object of a low score."""
    boxes = np.float32([[[10, 0, 90, 60], [14, 2, 96, 66], [100, 70, 150, 110]]])
    scores = np.float32([[[0.9, 0.02], [0.8, 0.03], [0.05, 0.2]]])
    preparation = {**PLAIN, 'multiple_of': 32, 'fill': [0, 0, 0]}
    reading = {'classes': ['raccoon', 'a cat with a long name'], 'nms': NMS, 'shown_from': 0.3}
    nodes = [constant('boxes', boxes), constant('scores', scores)]
    kinds = {'boxes': TensorProto.FLOAT, 'scores': TensorProto.FLOAT}
    return nodes, kinds, {'preparation': preparation, 'reading': reading}


def text_detection() -> tuple[list[Any], Mapping[str, int], dict[str, Any]]:
    """Text is where the image is dark."""
    nodes = [
        constant('axes', np.int64([1])),
        onnx.helper.make_node('ReduceMean', ['images', 'axes'], ['grey'], keepdims=0),
        constant('one', np.float32(1)),
        onnx.helper.make_node('Sub', ['one', 'grey'], ['probabilities']),
    ]
    guide = {
        'preparation': {**PLAIN, 'multiple_of': 4},
        'reading': {'post_processing': {**TEXTS, 'scoring': 'fast', 'dilate': False}},
    }
    return nodes, {'probabilities': TensorProto.FLOAT}, guide


def recognition() -> tuple[list[Any], Mapping[str, int], dict[str, Any]]:
    """Reads `abba` with gaps in between."""
    logits = np.zeros((1, 8, 3), np.float32)
    for step, letter in enumerate((1, 0, 2, 0, 2, 0, 1, 0)):
        logits[0, step, letter] = 5
    preparation = {'image_size': [16, 40], 'keep_ratio': True, 'channels': 'RGB', 'mean': [0, 0, 0], 'std': [1, 1, 1]}
    reading = {'characters': ['a', 'b'], 'blank': 0, 'first_character': 1}
    return [constant('logits', logits)], {'logits': TensorProto.FLOAT}, {'preparation': preparation, 'reading': reading}


def table() -> tuple[list[Any], Mapping[str, int], dict[str, Any]]:
    """A header over two columns, and a row of two cells."""
    numbers = [1, 4, 5, 6, 7, 2, 1, 3, 3, 2, 8]
    boxes = np.zeros((1, len(numbers), 4), np.float32)
    boxes[0, 1] = boxes[0, 4] = 0.05, 0.1, 0.95, 0.4
    boxes[0, 7], boxes[0, 8] = (0.05, 0.5, 0.45, 0.9), (0.5, 0.5, 0.95, 0.9)
    nodes = [
        constant('numbers', np.int64([numbers])),
        constant('chances', np.full((1, len(numbers)), 0.9, np.float32)),
        constant('boxes', boxes),
    ]
    kinds = {'numbers': TensorProto.INT64, 'chances': TensorProto.FLOAT, 'boxes': TensorProto.FLOAT}
    preparation = {'side': 64, 'channels': 'RGB', 'mean': [0, 0, 0], 'std': [1, 1, 1]}
    return nodes, kinds, {'preparation': preparation, 'reading': {'tokens': TOKENS, 'cells': ['<td></td>', '<td']}}
