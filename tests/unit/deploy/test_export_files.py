"""Files of an exported network: where they differ is found, and their READMEs name sizes that they take."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.deploy.compact import quantise
from phalanx.deploy.difference import describe_first_difference
from phalanx.deploy.formats import OLDEST_OPSET
from phalanx.deploy.writing import pooled_size, program_shapes, render_readme, run_onnx, trace, write_onnx

VARYING = {0: 1, 2: 1, 3: 1}
IMAGES = torch.linspace(0, 1, 2 * 3 * 64 * 96).reshape(2, 3, 64, 96)


class Small(nn.Module):
    """Three layers, one of them in a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.middle = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.last(self.middle(self.first(images)))
        return found


@pytest.fixture(scope='module')
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.export.ExportedProgram]:
    file = tmp_path_factory.mktemp('small') / 'small.onnx'
    program = trace(Small().eval(), IMAGES, VARYING)
    assert program_shapes(program, ['maps'], VARYING) == {
        'images': ['batch', 3, 'height', 'width'],
        'maps': ['batch', 2, 'height', 'width'],
    }
    return file, write_onnx(program, ['maps'], VARYING, file)


def test_the_first_layer_that_differs_is_named(written: tuple[Path, torch.export.ExportedProgram], tmp_path: Path) -> None:
    """The weights of the second convolution are changed in the file: its output differs, and all after it."""
    file, program = written
    assert describe_first_difference(program, file, IMAGES, 1e-4).startswith('no single layer differs')
    model, other = onnx.load(file), tmp_path / 'other.onnx'
    (weights,) = [tensor for tensor in model.graph.initializer if tensor.name == 'middle.1.weight']
    weights.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights) + np.float32(0.5), weights.name))
    onnx.save(model, other)
    assert re.match(
        r'the first layer that differs is middle\.1 \(aten\.conv.*\), by \d',
        describe_first_difference(program, other, IMAGES, 1e-4),
    )


class Shifted(nn.Module):
    """Its one operation belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(1))

    def forward(self, images: Tensor) -> Tensor:
        return images + self.shift


def test_an_operation_outside_of_layers_belongs_to_the_network(tmp_path: Path) -> None:
    program = write_onnx(trace(Shifted().eval(), IMAGES, VARYING), ['maps'], VARYING, tmp_path / 'shifted.onnx')
    model = onnx.load(tmp_path / 'shifted.onnx')
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.full(1, 2, np.float32), model.graph.initializer[0].name)
    )
    model.graph.node[-1].output[0] = next(node.name for node in program.graph.nodes if node.target is torch.ops.aten.add.Tensor)
    model.graph.output[0].name = model.graph.node[-1].output[0]
    onnx.save(model, tmp_path / 'shifted.onnx')
    found = describe_first_difference(program, tmp_path / 'shifted.onnx', IMAGES, 1e-4)
    assert found.startswith('the first layer that differs is the network (aten.add.Tensor), by')


def test_a_file_can_have_older_operators(tmp_path: Path) -> None:
    network = Small().eval()
    write_onnx(trace(network, IMAGES, VARYING), ['maps'], VARYING, tmp_path / 'old.onnx', OLDEST_OPSET)
    assert [one.version for one in onnx.load(tmp_path / 'old.onnx').opset_import if not one.domain] == [OLDEST_OPSET]
    _, ((maps,),) = run_onnx(tmp_path / 'old.onnx', [IMAGES])
    np.testing.assert_allclose(maps, network(IMAGES).detach().numpy(), atol=1e-5)


class Halving(nn.Sequential):
    """Two shortcuts as in ResNet-vd, after a convolution that halves the image, too."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 2, 3, 2, 1), *(nn.AvgPool2d(2, 2, ceil_mode=True) for _ in range(2)))


def test_pooling_of_every_size_is_traced_for_all_sizes(tmp_path: Path) -> None:
    network = Halving().eval()
    program = trace(network, IMAGES, VARYING)
    write_onnx(program, ['maps'], VARYING, tmp_path / 'halving.onnx')
    trials = [torch.rand(1, 3, height, width) for height, width in ((96, 129), (121, 135), (130, 128))]
    _, found = run_onnx(tmp_path / 'halving.onnx', trials)
    for images, (maps,) in zip(trials, found, strict=True):
        right = network(images).detach()
        assert torch.equal(program.module()(images), right)
        np.testing.assert_allclose(maps, right.numpy(), atol=1e-6)


@pytest.mark.parametrize('kernel', [1, 2, 3])
@pytest.mark.parametrize('stride', [1, 2, 3, 4])
@pytest.mark.parametrize('padding', [0, 1])
@pytest.mark.parametrize('dilation', [1, 2])
@pytest.mark.parametrize('ceil_mode', [False, True])
def test_sizes_after_pooling_are_those_of_torch(kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> None:
    padding = min(padding, kernel // 2)
    for size in range(dilation * (kernel - 1) + 1, 24):
        pooled = F.max_pool1d(torch.zeros(1, 1, size), kernel, stride, padding, dilation, ceil_mode)
        assert pooled_size(size, kernel, padding, padding, stride, dilation, ceil_mode) == pooled.shape[2]


class Halves(nn.Module):
    """Splits a constant, which the optimizer of onnxscript remarks upon."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        left, right = torch.arange(images.new_zeros(4).numel()).split(2)
        found: Tensor = self.conv(images) * left[:, None, None] + right[:, None, None]
        return found


def test_remarks_of_the_exporter_on_its_own_work_are_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_onnx(trace(Halves().eval(), IMAGES, VARYING), ['maps'], VARYING, tmp_path / 'halves.onnx')
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


class Uneven(nn.Module):
    """The second layer looks at the smaller of two maps, the first of which is a thousand times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 2, 1, bias=False), nn.Conv2d(2, 2, 1, bias=False)
        self.third = nn.Conv2d(2, 2, 1)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[1000.0, 0, 0], [0, 1, 0]])[:, :, None, None])
            self.second.weight.copy_(torch.tensor([[0.0, 1], [0, -1]])[:, :, None, None])
            self.third.weight.copy_(torch.tensor([[0.5, -0.5], [0.25, 0.5]])[:, :, None, None])
            self.third.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.third(self.second(self.first(images)).sigmoid())
        return found


def test_the_layer_that_loses_most_stays_in_float(tmp_path: Path) -> None:
    """255 steps for values up to 1000 leave nothing of those up to 1."""
    file, images = tmp_path / 'uneven.onnx', np.random.default_rng(0).uniform(0, 1, (4, 3, 8, 8)).astype(np.float32)
    write_onnx(trace(Uneven().eval(), IMAGES, VARYING), ['maps'], VARYING, file)
    shapes, (right,) = run_onnx(file, [torch.from_numpy(images)])
    (name,) = [node.name for node in onnx.load(file).graph.node if 'second.weight' in node.input]
    lossy = quantise(file, images)
    assert list(lossy) == [name]
    assert lossy[name] > 0.5
    made = {output: node.op_type for node in onnx.load(file).graph.node for output in node.output}
    weights = [node.input[1] for node in onnx.load(file).graph.node if node.op_type == 'Conv']
    assert [made.get(name) for name in weights] == ['DequantizeLinear', None, 'DequantizeLinear']  # None: as it is
    same_shapes, (found,) = run_onnx(file, [torch.from_numpy(images)])
    assert same_shapes == shapes
    np.testing.assert_allclose(found[0], right[0], atol=0.02)


def test_the_sizes_that_the_readme_gives_to_tensorrt_are_those_that_the_file_takes(
    written: tuple[Path, torch.export.ExportedProgram],
) -> None:
    file, _ = written
    shapes, _ = run_onnx(file, [IMAGES])
    said = {
        'file': 'small.onnx',
        'phalanx': '1',
        'model': 'small',
        'task': 'segmentation',
        'precision': 'fp32',
        'metric': {'name': 'mean_iou', 'value': 0.5, 'step': 7},
        'input': {'name': 'images', 'shape': shapes['images']},
        'preparation': {'channels': 'RGB', 'values': '', 'mean': [0, 0, 0], 'std': [1, 1, 1]},
        'outputs': [{'name': 'maps', 'shape': shapes['maps'], 'meaning': 'classes'}],
    }
    page = render_readme(said, VARYING, IMAGES.shape)
    assert 'mean_iou 0.5000 at step 7' in page
    sizes = [tuple(map(int, found.split('x'))) for found in re.findall(r'Shapes=images:(\S+)', page)]
    assert sizes == [(1, 3, 32, 48), (1, 3, 64, 96), (8, 3, 128, 192)]
    session = onnxruntime.InferenceSession(file)
    for size in sizes:
        (maps,) = session.run(None, {'images': np.zeros(size, np.float32)})
        assert maps.shape == (size[0], 2, *size[2:])
    assert 'Shapes=' not in render_readme(said, {}, IMAGES.shape)
    assert 'trtexec --onnx' not in render_readme({**said, 'precision': 'int8'}, VARYING, IMAGES.shape)
    for_coreml = render_readme({**said, 'file': 'small.pt2'}, {}, IMAGES.shape)
    assert ".run_decompositions({})).save('small.mlpackage')" in for_coreml
