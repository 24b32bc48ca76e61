"""Properties of every recognition network of the catalog, and of its options."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from filling import load_original
from phalanx.families.recognition.loss import CTC, Multi
from phalanx.families.recognition.models import MODELS
from phalanx.families.recognition.models.blocks import HEIGHTS
from phalanx.families.recognition.models.outputs import Outputs
from phalanx.families.recognition.models.sar import SARHead
from phalanx.families.recognition.texts import Texts
from phalanx.nn import stochastic
from phalanx.nn.backbones.lcnetv3 import ConvSum, pp_lcnet_v3
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3
from phalanx.nn.backbones.mobilenet_v1 import mobilenet_v1_enhance
from phalanx.nn.backbones.resnet34_vd import resnet34_vd
from phalanx.nn.stochastic import SampleKeys
from phalanx.paddle.weights import original_of
from phalanx.parallel.norms import BatchNorm2d

VARIANTS: dict[str, Callable[[], nn.Module]] = {
    'crnn': lambda: MODELS['crnn'](5),
    'crnn, small': lambda: MODELS['crnn'](5, backbone=partial(mobilenet_v3, size='small', scale=0.35), hidden_size=16),
    'crnn on resnet34_vd': lambda: MODELS['crnn'](5, backbone=partial(resnet34_vd), hidden_size=16),
    'svtr_lcnet': lambda: MODELS['svtr_lcnet'](5, backbone=partial(mobilenet_v1_enhance, scale=0.25), sar_size=32),
    'svtr_lcnet, not guided': lambda: MODELS['svtr_lcnet'](
        5, backbone=partial(mobilenet_v1_enhance, scale=0.25), sar_size=32, use_guide=False, depth=1, hidden_size=64
    ),
}


def texts() -> Texts:
    """Two texts of 3 and 1 of 5 characters; 6 is begin and end of the attention head, 7 its padding."""
    sar = torch.tensor([[6, 0, 4, 2, 6, 7], [6, 3, 6, 7, 7, 7]])
    return Texts(torch.tensor([[1, 5, 3], [4, 0, 0]]), torch.tensor([3, 1]), sar, torch.tensor([1.0, 0.3]))


@pytest.fixture(scope='module', params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope='module')
def model(variant: str) -> nn.Module:
    torch.manual_seed(0)
    return VARIANTS[variant]()


@pytest.fixture(scope='module')
def images(variant: str) -> Tensor:
    return torch.randn(2, 3, 48 if variant.startswith('svtr') else 32, 64)


def test_there_is_a_time_step_every_four_or_eight_columns(model: nn.Module, images: Tensor, variant: str) -> None:
    places = 64 // (8 if variant.startswith('svtr') else 4)
    with torch.no_grad():
        for mode in (True, False):
            outputs: Outputs = model.train(mode)(images)
            assert outputs.ctc.shape == (2, places, 6)
            assert outputs.sar is None and outputs.features is None
        outputs = model(images, texts())
    assert outputs.features is not None and outputs.features.shape[2:] == (1, places)
    assert (outputs.sar is None) if variant.startswith('crnn') else (outputs.sar is not None and outputs.sar.shape == (2, 6, 7))


@pytest.mark.parametrize(
    'build',
    [
        VARIANTS['svtr_lcnet'],
        lambda: MODELS['svtr_lcnetv3'](
            5, backbone=partial(pp_lcnet_v3, scale=0.35), neck_channels=16, hidden_size=16, depth=1, nrtr_size=32, nrtr_depth=1
        ),
    ],
    ids=['svtr_lcnet', 'svtr_lcnetv3'],
)
def test_an_exported_network_reads_the_same_without_what_only_trains(build: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, images = build(), torch.randn(2, 3, 48, 64)
    model.train()(images, texts())  # gives the norms statistics of their own
    right = model.eval()(images).ctc.detach()
    found = model.switch_to_deploy()(images).ctc
    torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-5)
    found.sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None and 'backbone' not in name] == []
    assert not any(isinstance(module, ConvSum) for module in model.modules())


def test_every_parameter_takes_part_in_training_with_every_loss(model: nn.Module, images: Tensor, variant: str) -> None:
    """Even with CTC alone, which does not use the attention head: DDP waits for the gradients of all parameters."""
    losses = [CTC()] if variant.startswith('crnn') else [CTC(), Multi()]
    for loss in losses:
        model.train().zero_grad()
        terms = loss(model(images, texts()), texts())
        torch.stack([term.total for term in terms.values()]).sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_every_norm_can_be_synchronised_and_no_dropout_is_torchs(model: nn.Module) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert norms and all(type(norm) is BatchNorm2d for norm in norms)
    assert not [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    assert not [module for module in model.modules() if isinstance(module, nn.LSTM) and module.dropout]


def test_logits_of_an_untrained_network_are_of_order_one(model: nn.Module, images: Tensor) -> None:
    """A bad initialisation makes the standard deviation of the logits many times larger."""
    with torch.no_grad():
        outputs: Outputs = model.train()(images, texts())
    assert outputs.ctc.std() < 1.5
    assert outputs.sar is None or outputs.sar.std() < 1.5


def test_weights_are_saved_and_loaded_under_their_original_names(model: nn.Module, variant: str) -> None:
    """Every array of a file fills one tensor, even if the LSTM is stored under both of its names."""
    original = original_of(model)
    rng = np.random.default_rng(0)
    linear = {f'{name}.weight' for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    arrays = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith('num_batches_tracked'):
            arrays[original.name(name)] = rng.random(
                tuple(tensor.T.shape if name in linear else tensor.shape), dtype=np.float32
            )
    arrays |= {second: arrays[first] for second, first in original.aliases.items()}
    fresh = VARIANTS[variant]()
    load_original(fresh, arrays)
    name = 'neck.weight_hh_l1_reverse' if variant.startswith('crnn') else 'sar.encoder.second.weight_hh_l0'
    np.testing.assert_array_equal(fresh.state_dict()[name], arrays[original.name(name)])
    np.testing.assert_array_equal(fresh.state_dict()['head.weight'].T, arrays[original.name('head.weight')])


def test_resnet_has_the_original_names() -> None:
    """Layer names of PaddleOCR's rec_resnet_vd.py; there are no golden numbers of this network."""
    model = VARIANTS['crnn on resnet34_vd']()
    names = {original_of(model).name(name) for name, _ in model.named_parameters()}
    assert {
        'backbone.conv1_3._conv.weight',
        'backbone.bb_0_0.short._conv.weight',
        'backbone.bb_2_5.conv1._batch_norm.bias',
        'backbone.bb_3_0.short._batch_norm.weight',
        'backbone.bb_3_2.conv0._conv.weight',
        'neck.encoder.lstm.bias_hh_l0_reverse',
        'head.fc.bias',
    } <= names
    assert len([name for name in names if '.short._conv' in name]) == 4


def test_convolutions_of_crnn_are_initialised_as_in_paddle() -> None:
    """Normal with variance 2 / (kernel area x input channels), depthwise convolutions included."""
    torch.manual_seed(0)
    model = MODELS['crnn'](36)
    last = model.backbone.blocks[14]
    assert last.filter.conv.weight.std().item() == pytest.approx(math.sqrt(2 / (25 * 480)), rel=0.05)
    assert last.widen.conv.weight.std().item() == pytest.approx(math.sqrt(2 / 80), rel=0.05)
    assert last.squeeze.excite.bias.abs().max() == 0
    assert model.head.weight.abs().max().item() == pytest.approx(1 / math.sqrt(192), rel=0.05)


def test_svtr_lcnet_is_initialised_as_in_paddleocr() -> None:
    """Backbone: He normal by the channels of a group; neck: He uniform, and a normal truncated at two standard deviations."""
    torch.manual_seed(0)
    model = MODELS['svtr_lcnet'](96)
    assert model.backbone.blocks[12].depthwise.conv.weight.std().item() == pytest.approx(math.sqrt(2 / 25), rel=0.05)
    assert model.backbone.blocks[12].squeeze.excite.weight.std().item() == pytest.approx(math.sqrt(2 / 128), rel=0.05)
    assert model.neck.enter.conv.weight.abs().max().item() == pytest.approx(math.sqrt(6 / 64), rel=0.05)
    assert model.neck.blocks[0].mixer.qkv.weight.abs().max().item() == pytest.approx(0.04, rel=0.05)
    assert model.sar.decoder.classify.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (1536 + 98)), rel=0.05)
    assert model.sar.decoder.embedding.weight[:-1].abs().max().item() == pytest.approx(math.sqrt(6 / (99 + 512)), rel=0.05)
    assert model.sar.decoder.embedding.weight[-1].abs().max() == 0


def test_dropout_is_a_function_of_the_sample_and_off_in_evaluation() -> None:
    model = MODELS['svtr_lcnet'](5, backbone=partial(mobilenet_v1_enhance, scale=0.25), sar_size=32)
    keys = SampleKeys()
    stochastic.tie(model, keys)
    for norm in (module for module in model.modules() if isinstance(module, BatchNorm2d)):
        norm.momentum = 0.0
    images = torch.randn(1, 3, 48, 64).repeat(3, 1, 1, 1)
    with torch.no_grad():
        keys.begin(torch.tensor([7, 8, 7]))
        outputs = model.train()(images)
        assert torch.equal(outputs.ctc[0], outputs.ctc[2])
        assert not torch.equal(outputs.ctc[0], outputs.ctc[1])
        torch.testing.assert_close(model.eval()(images).ctc[0], model(images[:1]).ctc[0])


def test_the_attention_head_ignores_the_padding_of_the_image() -> None:
    torch.manual_seed(0)
    head = SARHead(5, 8, size=16, dropout=0.0).eval()
    features = torch.randn(2, 8, 1, 20)
    logits = head(features, texts())
    changed = features.clone()
    changed[1, :, :, 8:] = 9.0  # 0.3 of 20 time steps are valid; the keys of the last one reach one step further
    torch.testing.assert_close(head(changed, texts())[1], logits[1])
    changed[0, :, :, 8:] = 9.0
    assert (head(changed, texts())[0] - logits[0]).abs().max() > 1e-3


def test_padding_of_texts_does_not_change_earlier_predictions() -> None:
    torch.manual_seed(0)
    head = SARHead(5, 8, size=16, dropout=0.0).eval()
    features, text = torch.randn(2, 8, 1, 20), texts()
    shorter = Texts(text.ctc, text.lengths, text.guide[:, :5], text.valid_ratios)
    torch.testing.assert_close(head(features, shorter), head(features, text)[:, :5])


def test_invalid_options_and_sizes_are_reported() -> None:
    with pytest.raises(ValueError, match=r'must be a multiple of its 8 heads, got 100$'):
        MODELS['svtr_lcnet'](36, hidden_size=100)
    with pytest.raises(ValueError, match=r'^the backbone gives 2 rows, it must be 1: set image_size'):
        MODELS['crnn'](36)(torch.zeros(1, 3, 64, 100))


@pytest.mark.parametrize('variant', VARIANTS)
def test_supported_heights_are_those_that_leave_one_row(variant: str) -> None:
    network = VARIANTS[variant]().eval()
    for height in (HEIGHTS[0], 32, HEIGHTS[-1]):
        assert network(torch.zeros(1, 3, height, 64)).ctc.shape[:2] == network(torch.zeros(1, 3, 32, 64)).ctc.shape[:2]
    for height in (HEIGHTS[0] - 1, HEIGHTS[-1] + 1):
        with pytest.raises((RuntimeError, ValueError)):
            network(torch.zeros(1, 3, height, 64))
