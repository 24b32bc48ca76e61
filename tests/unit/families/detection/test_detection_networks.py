"""Properties of every detection network, over the sizes of PP-YOLOE and PP-YOLOE+."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from phalanx.families.detection.decode import REACH, Raw, decode_boxes
from phalanx.families.detection.models import MODELS
from phalanx.families.detection.models.ppyoloe import PPYOLOE, ppyoloe
from phalanx.nn.backbones.csp_rep_resnet import RepBlock
from phalanx.paddle.weights import original_of
from phalanx.parallel.norms import BatchNorm2d

BINS = REACH[1] - REACH[0] + 1


@pytest.fixture(scope='module', params=[False, True], ids=['ppyoloe', 'plus'])
def model(request: pytest.FixtureRequest) -> PPYOLOE:
    torch.manual_seed(0)
    return ppyoloe(4, plus=request.param)


def stirred(model: PPYOLOE) -> PPYOLOE:
    """The network with other numbers in all places where fresh weights are 0 or 1, also in running statistics."""
    torch.manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, BatchNorm2d):
                assert module.running_mean is not None and module.running_var is not None
                for values in (module.weight, module.running_var):
                    values.uniform_(0.5, 1.5)
                for values in (module.bias, module.running_mean):
                    values.normal_(std=0.1)
            if isinstance(module, RepBlock) and module.alpha is not None:
                module.alpha.uniform_(-0.5, 1.5)
        for head in model.heads:
            for conv in (head.classify, head.measure):
                conv.weight.normal_(std=0.1)
    return model


@pytest.mark.parametrize(
    ('size', 'plus', 'millions'),
    [
        ('s', False, 7.93),  # PaddleDetection's table of models counts fused ones
        ('m', False, 23.43),
        ('l', False, 52.20),
        ('x', False, 98.42),
        ('s', True, 7.93),
    ],
)
def test_a_fused_network_has_the_published_number_of_parameters(size: str, plus: bool, millions: float) -> None:
    with torch.device('meta'):
        model = MODELS['ppyoloe'](80, size=size, plus=plus)
    counted = sum(p.numel() for p in model.parameters())
    replaced = sum(p.numel() for m in model.modules() if isinstance(m, RepBlock) for p in m.parameters())
    single = sum(m.large.conv.weight.numel() + m.large.conv.out_channels for m in model.modules() if isinstance(m, RepBlock))
    assert (counted - replaced + single) / 1e6 == pytest.approx(millions, abs=0.02)


@pytest.mark.parametrize(('size', 'channels'), [('n', (192, 96, 48)), ('t', (288, 144, 72)), ('s', (384, 192, 96))])
def test_small_sizes_have_a_quarter_to_a_half_of_the_channels(size: str, channels: tuple[int, ...]) -> None:
    """Of the 768, 384 and 192 of size l, from the coarsest map to the finest."""
    with torch.device('meta'):
        model = MODELS['ppyoloe'](80, size=size)
    assert tuple(model.neck.channels) == channels


@pytest.mark.parametrize(('height', 'width'), [(32, 64), (96, 64)])
def test_there_is_an_anchor_for_every_cell_of_three_levels(model: PPYOLOE, height: int, width: int) -> None:
    for mode in (True, False):
        with torch.no_grad():
            raw: Raw = model.train(mode)(torch.rand(2, 3, height, width))
        cells = [(height // stride) * (width // stride) for stride in (32, 16, 8)]
        assert raw.num_per_level == tuple(cells)
        assert raw.logits.shape == (2, sum(cells), 4)
        assert raw.distances.shape == (2, sum(cells), 4 * BINS)
        assert raw.strides.tolist() == [32.0] * cells[0] + [16.0] * cells[1] + [8.0] * cells[2]
        assert raw.points[:2].tolist() == [[16, 16], [48, 16]]  # row by row
        assert raw.points[-1].tolist() == [width - 4, height - 4]


def test_an_image_that_32_does_not_divide_is_refused(model: PPYOLOE) -> None:
    with pytest.raises(ValueError, match='images are 100 x 64; width and height must be multiples of 32'):
        model(torch.rand(1, 3, 64, 100))


def test_a_fresh_network_gives_each_class_one_percent_and_each_distance_the_same_chance(model: PPYOLOE) -> None:
    """Uniform over 0 .. 16 strides: a box reaches 8 strides to each side of its point."""
    with torch.no_grad():
        raw = model.train()(torch.rand(2, 3, 64, 64))
    torch.testing.assert_close(raw.logits.sigmoid(), torch.full_like(raw.logits, 0.01))
    reach = 8 * raw.strides[:, None]
    expected = torch.cat([raw.points - reach, raw.points + reach], -1).expand(2, -1, -1)
    torch.testing.assert_close(decode_boxes(raw), expected)


def test_a_box_lies_as_far_from_its_point_as_the_likeliest_bins_say() -> None:
    """Left 1, top 2, right 0 and bottom 3.5 strides of 8 pixels from (20, 12)."""
    logits = torch.full((4, BINS), -100.0)
    for side, bins in enumerate(([1], [2], [0], [3, 4])):
        logits[side, bins] = 0
    raw = Raw(torch.zeros(1, 1, 1), logits.view(1, 1, -1), torch.tensor([[20.0, 12.0]]), torch.tensor([8.0]), (1,))
    torch.testing.assert_close(decode_boxes(raw), torch.tensor([[[12.0, -4.0, 20.0, 40.0]]]))


def test_boxes_are_exact_where_the_network_is_in_half_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    distances = torch.randn(2, 5, 4 * BINS, generator=generator).bfloat16()
    points, strides = torch.rand(5, 2, generator=generator) * 640, torch.full((5,), 32.0)
    half = Raw(torch.zeros(2, 5, 1), distances, points, strides, (5,))
    expected = decode_boxes(half._replace(distances=distances.double(), points=points.double(), strides=strides.double()))
    with torch.autocast('cpu', dtype=torch.bfloat16):
        torch.testing.assert_close(decode_boxes(half).double(), expected, rtol=0, atol=1e-3)


def test_every_parameter_takes_part_in_training(model: PPYOLOE) -> None:
    model.train().zero_grad()
    raw = model(torch.rand(2, 3, 64, 64))
    (raw.logits.square().mean() + raw.distances.square().mean()).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_every_norm_can_be_synchronised(model: PPYOLOE) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert all(type(norm) is BatchNorm2d for norm in norms)


@pytest.mark.parametrize('plus', [False, True])
def test_a_fused_network_computes_the_same_with_fewer_convolutions(plus: bool) -> None:
    torch.manual_seed(0)
    model = stirred(ppyoloe(4, plus=plus)).eval()
    images = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        expected = model(images)
        convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
        blocks = sum(isinstance(module, RepBlock) for module in model.modules())
        found = model.switch_to_deploy()(images)
    assert expected.logits.std() > 0.1  # the comparison means something
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.distances, expected.distances, rtol=0, atol=1e-4)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == convolutions - blocks
    assert not [module for module in model.modules() if isinstance(module, RepBlock)]


def test_a_learned_factor_leaves_half_precision_as_it_is() -> None:
    block = RepBlock(2, alpha=True)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert block(torch.rand(1, 2, 4, 4)).dtype == torch.bfloat16


@pytest.mark.parametrize(('alpha', 'factor', 'slope'), [(0.5, 0.5, 1.0), (0.0, 1.0, 0.0), (-2.0, 1.0, 0.0)])
def test_a_learned_factor_counts_above_zero_only(alpha: float, factor: float, slope: float) -> None:
    """Rule of PaddleDetection, where `if alpha:` asks whether it is above 0; seen through the 1x1 branch alone."""
    block = RepBlock(2, alpha=True).eval()
    assert block.alpha is not None
    with torch.no_grad():
        block.alpha.fill_(alpha)
        block.large.conv.weight.zero_()
        block.small.conv.weight.copy_(torch.eye(2).view(2, 2, 1, 1))
    x = torch.rand(1, 2, 3, 3)
    y = block(x)
    torch.testing.assert_close(y, nn.functional.silu(x * factor), rtol=1e-4, atol=1e-4)
    y.sum().backward()
    assert block.alpha.grad is not None
    assert (block.alpha.grad.item() != 0) == (slope != 0)


def test_a_fourth_level_and_a_neck_with_factors_are_named_as_in_paddledetection() -> None:
    """The names follow from the sublayers of CSPResNet, CustomCSPPAN and PPYOLOEHead with four maps; shapes by hand."""
    network = ppyoloe(3, size='s', levels=4, neck_alpha=True)
    name = original_of(network).name
    shapes = {name(ours): tuple(tensor.shape) for ours, tensor in network.state_dict().items()}
    assert shapes['neck.fpn_stages.3.0.conv3.conv.weight'] == (32, 32, 1, 1)  # 64 * 0.5 channels
    assert shapes['neck.pan_routes.2.conv.weight'] == (32, 32, 3, 3)
    assert shapes['neck.pan_stages.2.0.conv1.conv.weight'] == (48, 128, 1, 1)  # of maps 96 and 32 deep
    assert shapes['neck.fpn_stages.0.0.convs.0.conv2.alpha'] == (1,)
    assert shapes['yolo_head.pred_cls.3.weight'] == (3, 32, 3, 3)
    raw = network.eval()(torch.zeros(1, 3, 64, 96))
    assert raw.num_per_level == (2 * 3, 4 * 6, 8 * 12, 16 * 24)
    assert raw.strides.unique().tolist() == [4, 8, 16, 32]


@pytest.mark.parametrize('name', ['deimv2', *(pytest.param(name, marks=pytest.mark.long) for name in ('dfine', 'rtdetrv2'))])
def test_detectors_with_queries_are_traced_for_any_batch(name: str) -> None:
    """Traces of an export, with a batch of variable size."""
    network: Any = MODELS[name](3, queries=20, decoder_layers=1).eval()
    images = torch.zeros(2, 3, 64, 64)
    program = torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim('batch')},), strict=False)
    more = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for own, traced in zip(network.decode(network(more)), network.decode(program.module()(more)), strict=True):
            torch.testing.assert_close(own, traced, rtol=1e-4, atol=1e-4)
