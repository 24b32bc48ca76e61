"""Every backbone keeps the contract, networks take any that fits, and refuse the others before training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from phalanx import create_model
from phalanx.config.read import ConfigError, to_plain
from phalanx.engine.checks import check_can_freeze, check_parts
from phalanx.engine.job import open_job
from phalanx.nn import stochastic
from phalanx.nn.backbones import BACKBONES
from phalanx.nn.backbones.timm_backbone import timm_backbone
from phalanx.nn.layers import Stride
from phalanx.parallel import norms
from phalanx.system.errors import RequestError
from phalanx.weights.reading import load_weights
from running import run_here

timm = pytest.importorskip('timm', reason='timm, an optional library, is not installed')
SQUARE, LINES = (4, 8, 16, 32), ((32, 4),)
OF_LINES = {'mobilenet_v1_enhance': ((32, 8),)}
OPTIONS: dict[str, dict[str, Any]] = {'timm_backbone': {'model': 'test_resnet'}}
TIMM = {'name': 'timm_backbone', 'model': 'test_resnet'}
DIGITS = 'data={name: digit_scenes, train_scenes: 4, eval_scenes: 2, size: [64, 64], digit_height: [16, 24]}'
SHORT = ('train.steps=1', 'ema.decay=0.5', 'train.global_batch_size=2', 'train.workers=0', 'report.pictures=0', 'device=cpu')


def requests() -> Iterator[tuple[str, tuple[Stride, ...]]]:
    """Each backbone with strides that some network needs."""
    for name in BACKBONES:
        yield name, OF_LINES.get(name, SQUARE)
    yield from (('mobilenet_v3', LINES), ('pp_lcnet_v3', ((16, 4),)), ('pp_lcnet_v4', ((16, 4),)))
    yield from (('resnet34_vd', LINES), ('resnet50_vd', (4, 8)), ('mobilenet_v2', (4, 16)))


@pytest.mark.parametrize(('name', 'strides'), list(requests()))
def test_channels_and_strides_are_those_of_the_maps(name: str, strides: tuple[Stride, ...]) -> None:
    H, W = 64, 96
    with torch.device('meta'):  # no weights are drawn: shapes alone
        backbone: Any = BACKBONES[name](strides, **OPTIONS.get(name, {}))
    with torch.no_grad():  # twice as fast as on meta, where norms are many operations in Python
        maps = backbone.to_empty(device='cpu').eval()(torch.rand(1, 3, H, W))
    down_and_right = [(stride, stride) if isinstance(stride, int) else stride for stride in backbone.strides]
    expected = [(C, -(-H // down), -(-W // right)) for C, (down, right) in zip(backbone.channels, down_and_right, strict=True)]
    assert [tuple(x.shape[1:]) for x in maps] == expected


@pytest.mark.parametrize(
    ('network', 'backbone', 'message'),
    [
        (
            'deeplabv3p',
            'mit_b0',
            'deeplabv3p needs maps of stride 4, 16, and none coarser; the backbone MixViT has 4, 8, 16, 32',
        ),
        ('crnn', 'hrnet_w18', 'crnn needs maps of stride 32 x 4, .* the backbone HRNet has 4, 8, 16, 32'),
        ('db', 'mobilenet_v1_enhance', 'db needs maps of stride 4, 8, 16, 32, .* has 32 x 8'),
        (
            'ppyoloe',
            {'name': 'timm_backbone', 'model': 'test_resnt'},
            "timm has no network 'test_resnt'; did you mean 'test_resnet'",
        ),
        (
            'deeplabv3p',
            {'name': 'timm_backbone', 'model': 'starnet_s1'},
            r"timm's starnet_s1 cannot keep its coarsest map at stride 16 .* \(of deeplabv3p: model.output_stride=32\)",
        ),
        ('db', {**TIMM, 'weights': 'r_in1k'}, "weights: 'r_in1k' is not a file, a URL or one of the tags of test_resnet"),
        ('segformer', {'name': 'mit_b0', 'drop_pat': 0.2}, "backbone.drop_pat: unknown key; did you mean 'drop_path'"),
        ('segformer', 'mit_b9', "'mit_b9' is not one of .*; did you mean 'mit_b"),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused_with_the_reason(network: str, backbone: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model(network, num_classes=1, backbone=backbone)


def test_a_recipe_with_a_backbone_that_does_not_fit_is_refused_before_training() -> None:
    job = open_job('pp_liteseg_digits', [('model={name: deeplabv3p, backbone: stdc1}', '--set'), ('loss=[dice]', '--set')])
    with pytest.raises(
        RequestError, match='deeplabv3p needs maps of stride 4, 16, and none coarser; the backbone STDC has 2, 4'
    ):
        check_parts(job, 1)


def model_of(*sets: str, recipe: str = 'db_pages') -> Any:
    return to_plain(open_job(recipe, [(text, text) for text in sets]).resolved)['model']


def test_options_of_a_backbone_can_be_set_with_its_name_or_alone() -> None:
    mobilenet = {'name': 'mobilenet_v3', 'size': 'large', 'scale': 0.35, 'squeeze': True}
    assert model_of()['backbone'] == mobilenet
    assert model_of('model.backbone.scale=0.5')['backbone'] == {**mobilenet, 'scale': 0.5}
    assert model_of('model.backbone=pp_lcnet_v3')['backbone'] == {'name': 'pp_lcnet_v3', 'scale': 0.75, 'merged': False}
    assert model_of('model.backbone=pp_lcnet_v3', 'model.backbone.merged=true')['backbone']['merged'] is True
    reader = model_of('model={name: svtr_lcnetv3}', 'model.backbone.merged=true', recipe='crnn_digits')  # its own default scale
    assert reader['backbone'] == {'name': 'pp_lcnet_v3', 'scale': 0.95, 'merged': True}


def test_an_option_of_the_backbone_beside_it_is_refused_with_its_place() -> None:
    place = r'it is an option of backbone: write backbone: \{name: mobilenet_v3, scale: 0.5\}'
    with pytest.raises(ConfigError, match=place):
        model_of('model.scale=0.5')


def test_only_the_strides_that_a_network_needs_are_built() -> None:
    """A stage behind the coarsest map would have parameters without gradients."""
    backbone: Any = timm_backbone((4, 8), model='test_convnext')
    assert backbone.strides == (4, 8)
    sum(x.sum() for x in backbone(torch.rand(1, 3, 64, 64))).backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize('size', [(64, 96), (40, 56), (33, 65)])
def test_a_plain_transformer_gets_a_feature_pyramid(size: tuple[int, int]) -> None:
    backbone: Any = timm_backbone(SQUARE, model='test_vit')
    maps = backbone(torch.rand(1, 3, *size))
    assert backbone.channels == (256,) * 4
    assert [tuple(x.shape[2:]) for x in maps] == [tuple(-(-side // stride) for side in size) for stride in SQUARE]
    sum(x.square().sum() for x in maps).backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


def test_patches_of_14_pixels_have_maps_of_the_same_strides() -> None:
    """DINOv2 has them; images are resized so that patches have a stride of 16 pixels."""
    backbone: Any = timm_backbone((16,), model='vit_small_patch14_dinov2')
    with torch.no_grad():
        (found,) = backbone.eval()(torch.rand(1, 3, 32, 64))
    assert found.shape == (1, 256, 2, 4)


def test_swin_takes_images_of_any_size() -> None:
    """Timm's own default takes 224 x 224 only."""
    backbone: Any = timm_backbone(SQUARE, model='swin_tiny_patch4_window7_224')
    with torch.no_grad():
        maps = backbone.eval()(torch.rand(1, 3, 32, 64))
    assert [tuple(x.shape[2:]) for x in maps] == [(8, 16), (4, 8), (2, 4), (1, 2)]


def test_a_network_for_one_size_is_told_that_size() -> None:
    with pytest.raises(
        ValueError, match=r"timm's pit_ti_224 takes images of one size only; give .* img_size: \[height, width\]"
    ):
        timm_backbone(SQUARE, model='pit_ti_224')
    with pytest.raises(ValueError, match=r"img_size: timm's test_resnet takes images of any size; leave img_size out"):
        timm_backbone(SQUARE, model='test_resnet', img_size=(64, 64))


def test_an_image_of_another_size_than_that_of_the_network_is_refused() -> None:
    backbone: Any = timm_backbone((16, 32), model='botnet26t_256', img_size=(64, 96))
    with torch.no_grad():
        assert [tuple(x.shape[2:]) for x in backbone.eval()(torch.rand(1, 3, 64, 96))] == [(4, 6), (2, 3)]
        with pytest.raises(ValueError, match=r'model.backbone.img_size is \[64, 96\], but an image has \[64, 64\]'):
            backbone(torch.rand(1, 3, 64, 64))


def test_a_plain_transformer_for_one_size_is_built_for_the_size_of_the_images() -> None:
    """CaiT and BEiT do not know timm's `dynamic_img_size`."""
    backbone: Any = timm_backbone(SQUARE, model='cait_xxs24_224', img_size=(32, 48))
    with torch.no_grad():
        assert [tuple(x.shape[2:]) for x in backbone.eval()(torch.rand(1, 3, 32, 48))] == [(8, 12), (4, 6), (2, 3), (1, 2)]
        with pytest.raises(ValueError, match=r'model.backbone.img_size is \[32, 48\], but an image has \[48, 48\]'):
            backbone(torch.rand(1, 3, 48, 48))
    with pytest.raises(ValueError, match=r'img_size: \[30, 48\] must be multiples of 16'):
        timm_backbone(SQUARE, model='cait_xxs24_224', img_size=(30, 48))


@pytest.mark.parametrize(('training', 'shown'), [((64, 64), r'\[64, 64\]'), ((64, 96), r'\[128, 96\]')])
def test_images_of_another_size_are_found_before_the_training_starts(training: tuple[int, int], shown: str) -> None:
    """Of training and of evaluation."""
    backbone = 'model={name: deeplabv3p, backbone: {name: timm_backbone, model: botnet26t_256, img_size: [64, 96]}}'
    sizes = {'transforms': list(training), 'eval_transforms': [128, 96]}
    resized = [f'{key}=[{{name: resize, target_size: {size}}}]' for key, size in sizes.items()]
    job = open_job('pp_liteseg_digits', [(text, '--set') for text in (backbone, DIGITS, 'loss=[dice]', *resized)])
    with pytest.raises(RequestError, match=rf'img_size is \[64, 96\], but an image has {shown}; give that size, or make all'):
        check_parts(job, 1)


@pytest.mark.parametrize('name', ['test_resnet', 'test_efficientnet'])
def test_batch_norm_and_drop_path_of_timm_are_replaced_by_ours(name: str) -> None:
    model = nn.Sequential(timm_backbone(SQUARE, model=name, drop_path=0.5))  # type: ignore[arg-type]
    statistics = norms.synchronise(model, 'off', None)  # raises for a norm that cannot be shared
    assert len(statistics.norms) > 5
    assert stochastic.tie(model, stochastic.SampleKeys())
    assert not any(type(module).__module__.startswith('timm.layers.drop') for module in model.modules())


@torch.no_grad()
def test_maps_of_timm_with_our_norms_are_those_of_timm() -> None:
    torch.manual_seed(0)
    theirs = timm.create_model('test_efficientnet', features_only=True, feature_cls='getter', out_indices=(1, 2, 3, 4)).eval()
    ours: Any = timm_backbone(SQUARE, model='test_efficientnet')
    ours.body.load_state_dict(theirs.state_dict())
    images = torch.rand(2, 3, 64, 64)
    for mine, other in zip(ours.eval()(images), theirs(images), strict=True):
        torch.testing.assert_close(mine, other)


def saved(folder: Path, name: str) -> tuple[nn.Module, Path]:
    classifier = timm.create_model(name, num_classes=2)
    torch.save(classifier.state_dict(), folder / f'{name}.pth')
    return classifier, folder / f'{name}.pth'


@pytest.mark.parametrize('name', ['test_resnet', 'test_vit'])
def test_a_backbone_starts_from_the_file_of_a_classifier(tmp_path: Path, name: str) -> None:
    classifier, path = saved(tmp_path, name)
    model: Any = create_model('db', num_classes=1, backbone={'name': 'timm_backbone', 'model': name, 'weights': str(path)})
    taken = model.backbone.body.model.state_dict()
    expected = {key: value for key, value in classifier.state_dict().items() if key in taken}
    assert len(expected) == len(taken)
    assert all(torch.equal(taken[key], value) for key, value in expected.items())


def test_a_classifier_of_timm_can_be_loaded_by_init_part(tmp_path: Path) -> None:
    classifier, path = saved(tmp_path, 'test_resnet')
    model: Any = create_model('db', num_classes=1, backbone=TIMM)
    load_weights(model, path, part='backbone')
    assert torch.equal(model.backbone.body.model.conv1[0].weight, classifier.conv1[0].weight)  # type: ignore[index]


def test_a_tag_of_timm_is_resolved_but_downloaded_only_when_training_starts() -> None:
    backbone: Any = timm_backbone(SQUARE, model='test_resnet', weights='r160_in1k')
    assert backbone.weights == 'hf://timm/test_resnet.r160_in1k'


def test_missing_or_foreign_weights_are_one_line_before_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, other = saved(tmp_path, 'test_vit')
    for weights, message in {
        tmp_path / 'none.pth': 'model.backbone.weights: ',
        other: f'model.backbone.weights: {other}: these are weights of another network',
    }.items():
        sets = (f'model.backbone={{name: timm_backbone, model: test_resnet, weights: {weights}}}', *SHORT)
        assert run_here('train', 'db_pages', '--set', *sets, '--save_dir', str(tmp_path / 'run')) == 2
        said = capfd.readouterr().err
        assert message in said and 'Traceback' not in said
        assert not (tmp_path / 'run' / 'metrics.jsonl').exists()


def test_a_backbone_with_weights_of_its_own_can_be_frozen(tmp_path: Path) -> None:
    _, path = saved(tmp_path, 'test_resnet')
    backbone = f'model.backbone={{name: timm_backbone, model: test_resnet, weights: {path}}}'
    job = open_job('db_pages', [(text, text) for text in (backbone, 'train.freeze=[backbone]')])
    check_can_freeze(job.recipe, job.task.model())


NETWORKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    'deeplabv3p': ('pp_liteseg_digits', {'model': 'test_convnext', 'drop_path': 0.1}, (DIGITS, 'loss=[dice]')),
    'ppyoloe': ('ppyoloe_digits', {'model': 'test_resnet'}, (DIGITS, 'transforms=[random_flip]')),
    'db': (
        'db_pages',
        {'model': 'test_vit'},
        ('data={name: drawn_pages, train_pages: 4, eval_pages: 2, page_size: [64, 64], lines: [1, 2], heights: [12, 20]}',),
    ),
}


def trained_on_timm(network: str, folder: Path) -> str:
    """Run of the network on its backbone of timm."""
    recipe, options, sets = NETWORKS[network]
    keys = ', '.join(f'{key}: {value}' for key, value in {'name': 'timm_backbone', **options}.items())
    model = f'model={{name: {network}, backbone: {{{keys}}}}}'
    run = str(folder / 'run')
    assert run_here('train', recipe, '--set', model, *SHORT, *sets, '--save_dir', run) == 0
    return run


@pytest.mark.parametrize('network', NETWORKS)
def test_a_network_on_a_backbone_of_timm_is_trained_and_evaluated(network: str, tmp_path: Path) -> None:
    assert run_here('eval', trained_on_timm(network, tmp_path), '--json') == 0


@pytest.mark.long
@pytest.mark.parametrize('network', NETWORKS)
def test_a_network_on_a_backbone_of_timm_is_exported(network: str, tmp_path: Path) -> None:
    """Compared with the network by `export` itself."""
    size = ('--dynamic', 'batch', '--image_size', '64,64')  # not all networks of timm are traced for any size
    assert run_here('export', trained_on_timm(network, tmp_path), *size, '--out', str(tmp_path / 'model.onnx')) == 0
