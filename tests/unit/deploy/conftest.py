"""Tiny models that read pages: texts are grey blocks on white."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from phalanx.data.samples import Image
from phalanx.deploy.writing import write_guide

DARK, MIDDLE = 51, 128  # a block of this grey is an `a`, or a `b`


def network(path: Path, outputs: str, nodes: Sequence[Any], constants: dict[str, Any], guide: dict[str, Any]) -> Path:
    """An ONNX file that computes `outputs` of `images` [B, 3, H, W], with what a reader must know of it."""
    images = helper.make_tensor_value_info('images', TensorProto.FLOAT, ['B', 3, 'H', 'W'])
    found = helper.make_tensor_value_info(outputs, TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, 'network', [images], [found], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9), path)
    shared = {'format': 1, 'phalanx': '0.1.0', 'model': path.stem, 'input': {'name': 'images', 'shape': ['B', 3, 'H', 'W']}}
    write_guide(path, {**shared, **guide})
    return path


@pytest.fixture
def det(tmp_path: Path) -> Path:
    """Finds what is darker than the paper: the probability of a text is 1 - grey."""
    nodes = [
        helper.make_node('ReduceMean', ['images', 'channels'], ['grey'], keepdims=0),
        helper.make_node('Sub', ['one', 'grey'], ['probabilities']),
    ]
    texts = {'threshold': 0.3, 'box_threshold': 0.4, 'max_candidates': 100, 'unclip_ratio': 0.0, 'shape': 'quad'}
    guide = {
        'task': 'text_detection',
        'preparation': {'transforms': [], 'multiple_of': 4, 'channels': 'RGB', 'mean': [0, 0, 0], 'std': [1, 1, 1]},
        'reading': {'post_processing': {**texts, 'scoring': 'fast', 'dilate': False}},
    }
    constants = {'channels': np.int64([1]), 'one': np.float32(1)}
    return network(tmp_path / 'det.onnx', 'probabilities', nodes, constants, guide)


@pytest.fixture
def rec(tmp_path: Path) -> Path:
    """Reads `a` where a column is nearest to DARK, `b` where it is nearest to MIDDLE, and nothing on paper."""
    levels = np.float32([0, DARK / 255 - 1, MIDDLE / 255 - 1])  # (value / 255 - 1): paper is 0, and so is what fills up a line
    nodes = [
        helper.make_node('ReduceMean', ['images', 'axes'], ['grey'], keepdims=0),
        helper.make_node('Unsqueeze', ['grey', 'last'], ['column']),
        helper.make_node('MatMul', ['column', 'slopes'], ['sloped']),
        helper.make_node('Sub', ['sloped', 'squares'], ['logits']),  # largest where (grey - level)^2 is smallest
    ]
    constants = {
        'axes': np.int64([1, 2]),
        'last': np.int64([2]),
        'slopes': 1000 * 2 * levels[None],
        'squares': 1000 * levels**2,
    }
    guide = {
        'task': 'recognition',
        'preparation': {'image_size': [16, 40], 'keep_ratio': True, 'channels': 'RGB', 'mean': [1, 1, 1], 'std': [1, 1, 1]},
        'reading': {'characters': ['a', 'b'], 'blank': 0, 'first_character': 1},
    }
    return network(tmp_path / 'rec.onnx', 'logits', nodes, constants, guide)


@pytest.fixture
def page() -> Image:
    """Two rows: `ba` and, to its right, `a`; below, an upright `b`, which is written from top to bottom."""
    image = np.full((200, 300, 3), 255, np.uint8)
    image[22:42, 200:260] = DARK
    image[20:40, 20:60], image[20:40, 60:100] = MIDDLE, DARK
    image[80:160, 30:50] = MIDDLE
    return image
