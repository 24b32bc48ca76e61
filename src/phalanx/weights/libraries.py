"""Parameter names of backbones in PyTorch's libraries that have the same networks: timm's resnet50d, hrnet_w18, xception65, and
the MiT of transformers.

Files of their classifiers fill a backbone; the head is left over. A test compares outputs with each library
(`tests/unit/weights/test_backbones_of_libraries.py`). The authors' own MiT and STDC have the names of PaddleSeg.
"""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from phalanx.nn.backbones.hrnet import HRNet
from phalanx.nn.backbones.line_mobilenet_v3 import LineMobileNetV3
from phalanx.nn.backbones.mix_vit import MixViT
from phalanx.nn.backbones.mobilenet_v3 import MobileNetV3
from phalanx.nn.backbones.resnet_vd import ResNetVD
from phalanx.nn.backbones.timm_backbone import TimmBackbone, TimmPyramid
from phalanx.nn.backbones.xception import Xception
from phalanx.paddle.weights.original import Rule, apply_rules, number_from
from phalanx.weights.matching import Slot

RESNET_D: tuple[Rule, ...] = (
    (r'^stem\.([01])\.conv\.', lambda match: f'conv1.{3 * int(match[1])}.'),
    (r'^stem\.([01])\.norm\.', lambda match: f'conv1.{3 * int(match[1]) + 1}.'),
    (r'^stem\.2\.conv\.', 'conv1.6.'),
    (r'^stem\.2\.norm\.', 'bn1.'),
    (r'^stages\.(\d)\.', number_from('layer{}.')),
    (r'\.squeeze\.conv\.', '.conv1.'),
    (r'\.squeeze\.norm\.', '.bn1.'),
    (r'\.spatial\.conv\.', '.conv2.'),
    (r'\.spatial\.norm\.', '.bn2.'),
    (r'\.widen\.conv\.', '.conv3.'),
    (r'\.widen\.norm\.', '.bn3.'),
    (r'\.shortcut\.conv\.', '.downsample.1.'),
    (r'\.shortcut\.norm\.', '.downsample.2.'),
)
IN_SEQUENTIAL: tuple[Rule, ...] = ((r'\.conv\.(\w+)$', r'.0.\1'), (r'\.norm\.(\w+)$', r'.1.\1'))  # of a Sequential


def _conv_or_norm(match: re.Match[str]) -> str:
    """`.convs.0.conv.` -> `.conv1.`, `.convs.0.norm.` -> `.bn1.`."""
    return f'.{"bn" if match[2] == "norm" else "conv"}{int(match[1]) + 1}.'


HRNET: tuple[Rule, ...] = (
    (r'^stem\.(\d)\.(conv|norm)\.', lambda match: _conv_or_norm(match)[1:]),
    (r'^first\.', 'layer1.'),
    (r'^finest\.', 'transition1.0.'),
    (r'^joining\.(\d)\.', lambda match: f'transition{int(match[1]) + 1}.{int(match[1]) + 1}.0.'),
    (r'^stages\.(\d)\.', number_from('stage{}.', 2)),
    (r'\.convs\.(\d)\.(conv|norm)\.', _conv_or_norm),
    (r'\.shortcut\.', '.downsample.'),
    (r'\.sums\.(\d)\.paths\.(\d)\.', r'.fuse_layers.\1.\2.'),
    *IN_SEQUENTIAL,
)


def _separable_half(match: re.Match[str]) -> str:
    """Name of one half of a separable convolution: `.convs.0.1.conv.` -> `.stack.conv1.conv_dw.`, `0.2.norm` -> `bn_pw`."""
    return f'.stack.conv{int(match[1]) + 1}.{"bn" if match[3] == "norm" else "conv"}_{"dw" if match[2] == "1" else "pw"}.'


XCEPTION: tuple[Rule, ...] = (
    (r'^entry\.', 'blocks.'),
    (r'^middle\.(\d+)\.', number_from('blocks.{}.', 3)),
    (r'^exit\.0\.', 'blocks.19.'),
    (r'^exit\.(\d)\.([01])\.', lambda match: f'blocks.20.convs.{int(match[1]) - 1}.{int(match[2]) + 1}.'),
    (r'\.convs\.(\d)\.([12])\.(conv|norm)\.', _separable_half),
    (r'\.norm\.', '.bn.'),
)

MIT: tuple[Rule, ...] = (  # as in files on the hub, whatever the version of transformers
    (r'^stages\.(\d)\.embed\.', r'encoder.patch_embeddings.\1.proj.'),
    (r'^stages\.(\d)\.embed_norm\.', r'encoder.patch_embeddings.\1.layer_norm.'),
    (r'^stages\.(\d)\.norm\.', r'encoder.layer_norm.\1.'),
    (r'^stages\.(\d)\.blocks\.', r'encoder.block.\1.'),
    (r'\.norm([12])\.', r'.layer_norm_\1.'),
    (r'\.attention\.(query|key|value)\.', r'.attention.self.\1.'),
    (r'\.attention\.reduce\.', '.attention.self.sr.'),
    (r'\.attention\.reduced_norm\.', '.attention.self.layer_norm.'),
    (r'\.attention\.out\.', '.attention.output.dense.'),
    (r'\.mlp\.widen\.', '.mlp.dense1.'),
    (r'\.mlp\.mix\.', '.mlp.dwconv.dwconv.'),
    (r'\.mlp\.narrow\.', '.mlp.dense2.'),
)

LIBRARIES: dict[type, tuple[tuple[Rule, ...], ...]] = {
    TimmBackbone: (((r'^body\.model\.', ''),),),
    TimmPyramid: (((r'^body\.model\.', ''),),),
    HRNet: (HRNET,),
    MixViT: (MIT, (*MIT, (r'^', 'segformer.'))),  # of the backbone alone, and of a whole network
    ResNetVD: (RESNET_D,),
    Xception: (XCEPTION,),
}

_WHY = (
    "is a MobileNetV3 of timm or torchvision, not PaddleOCR's: the first block there has no expansion convolution, channels "
    'are weighted by a hard sigmoid of slope 1/6, not 0.2; use weights of PaddleOCR or PaddleClas'
)
_MOBILENETS = ((r'(^|\.)features\.1\.block\.0\.0\.', _WHY), (r'(^|\.)blocks\.0\.0\.conv_dw\.', _WHY))
# Different networks under the same name, by a parameter name that only their files have: most of their tensors would fit.
OTHERS: dict[type, tuple[tuple[str, str], ...]] = {
    ResNetVD: (
        (
            r'(^|\.)layer1\.0\.downsample\.0\.weight$',
            'is a plain ResNet: its stem is one convolution and its shortcuts do not average; '
            "the same network is timm's resnet50d or resnet101d",
        ),
    ),
    MobileNetV3: _MOBILENETS,
    LineMobileNetV3: _MOBILENETS,
}


def check_same_network(backbone: object, names: Iterable[str]) -> None:
    """Raise ValueError, with the reason, if `names` belong to a different network with the name of `backbone`."""
    patterns = [each for kind, listed in OTHERS.items() if isinstance(backbone, kind) for each in listed]
    for name in names:
        for pattern, reason in patterns:
            if re.search(pattern, name):
                raise ValueError(f'{reason} ({name})')


def slots(inside: Mapping[str, Tensor], rules: tuple[Rule, ...]) -> dict[str, Slot]:
    """Tensors of the backbone, `inside` by their names in the network, under their names in the library.

    Key and value projections of an attention are one tensor here and two there.
    """
    result = {}
    for ours, tensor in inside.items():
        parts = {ours: tensor}
        # Views of the same tensor: filling them fills it.
        if '.key_value.' in ours:
            parts = {
                ours.replace('key_value', part): half for part, half in zip(('key', 'value'), tensor.chunk(2), strict=True)
            }
        for name, part in parts.items():
            result[f'backbone.{apply_rules(name.removeprefix("backbone."), rules)}'] = Slot(ours, part)
    return result
