"""Names that PyTorch's libraries have for backbones that are the same networks there: timm's resnet50d, hrnet_w18, xception65.

Files of their classifiers fill a backbone here; the head is left over. Each set of names is held to the library's own outputs
(`tests/unit/test_backbones_of_libraries.py`).
"""

from __future__ import annotations

import re

from torch import nn

from phalanx.nn.backbones.hrnet import HRNet
from phalanx.nn.backbones.resnet_vd import ResNetVD
from phalanx.nn.backbones.xception import Xception
from phalanx.weights.originals.original import Rule

RESNET_D: tuple[Rule, ...] = (
    (r'^stem\.([01])\.conv\.', lambda match: f'conv1.{3 * int(match[1])}.'),
    (r'^stem\.([01])\.norm\.', lambda match: f'conv1.{3 * int(match[1]) + 1}.'),
    (r'^stem\.2\.conv\.', 'conv1.6.'),
    (r'^stem\.2\.norm\.', 'bn1.'),
    (r'^stages\.(\d)\.', lambda match: f'layer{int(match[1]) + 1}.'),
    (r'\.squeeze\.conv\.', '.conv1.'),
    (r'\.squeeze\.norm\.', '.bn1.'),
    (r'\.spatial\.conv\.', '.conv2.'),
    (r'\.spatial\.norm\.', '.bn2.'),
    (r'\.widen\.conv\.', '.conv3.'),
    (r'\.widen\.norm\.', '.bn3.'),
    (r'\.shortcut\.conv\.', '.downsample.1.'),
    (r'\.shortcut\.norm\.', '.downsample.2.'),
)
IN_ORDER: tuple[Rule, ...] = ((r'\.conv\.(\w+)$', r'.0.\1'), (r'\.norm\.(\w+)$', r'.1.\1'))  # of a Sequential


def _numbered(match: re.Match[str]) -> str:
    """`.convs.0.conv.` -> `.conv1.`, `.convs.0.norm.` -> `.bn1.`."""
    return f'.{"bn" if match[2] == "norm" else "conv"}{int(match[1]) + 1}.'


HRNET: tuple[Rule, ...] = (
    (r'^stem\.(\d)\.(conv|norm)\.', lambda match: _numbered(match)[1:]),
    (r'^first\.', 'layer1.'),
    (r'^finest\.', 'transition1.0.'),
    (r'^joining\.(\d)\.', lambda match: f'transition{int(match[1]) + 1}.{int(match[1]) + 1}.0.'),
    (r'^stages\.(\d)\.', lambda match: f'stage{int(match[1]) + 2}.'),
    (r'\.convs\.(\d)\.(conv|norm)\.', _numbered),
    (r'\.shortcut\.', '.downsample.'),
    (r'\.sums\.(\d)\.paths\.(\d)\.', r'.fuse_layers.\1.\2.'),
    *IN_ORDER,
)


def _separable(match: re.Match[str]) -> str:
    """The halves of a separable convolution: `.convs.0.1.conv.` -> `.stack.conv1.conv_dw.`, `.convs.0.2.norm.` -> `bn_pw`."""
    return f'.stack.conv{int(match[1]) + 1}.{"bn" if match[3] == "norm" else "conv"}_{"dw" if match[2] == "1" else "pw"}.'


XCEPTION: tuple[Rule, ...] = (
    (r'^entry\.', 'blocks.'),
    (r'^middle\.(\d+)\.', lambda match: f'blocks.{int(match[1]) + 3}.'),
    (r'^exit\.0\.', 'blocks.19.'),
    (r'^exit\.(\d)\.([01])\.', lambda match: f'blocks.20.convs.{int(match[1]) - 1}.{int(match[2]) + 1}.'),
    (r'\.convs\.(\d)\.([12])\.(conv|norm)\.', _separable),
    (r'\.norm\.', '.bn.'),
)

LIBRARIES: dict[type[nn.Module], tuple[str, tuple[Rule, ...]]] = {
    HRNet: ('timm', HRNET),
    ResNetVD: ('timm', RESNET_D),
    Xception: ('timm', XCEPTION),
}


def renamed(name: str, rules: tuple[Rule, ...]) -> str:
    """The name that the library has for `name` of ours, both within the backbone."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
