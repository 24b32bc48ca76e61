"""Names of PaddleSeg's OCRNet on HRNet, which counts from 1."""

import re

from phalanx.families.segmentation.models.ocrnet import OCRNet
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original


def original(model: OCRNet) -> Original:
    """How PaddleSeg names the parameters of `model`."""
    return Original(
        rules=(
            (r'^backbone\.stem\.(\d)\.', lambda match: f'backbone.conv_layer1_{_from_1(match)[0]}.'),
            (r'^backbone\.first\.(\d)\.', lambda match: f'backbone.la1.bb_layer2_{_from_1(match)[0]}.'),
            (r'^backbone\.finest\.', 'backbone.tr1.transition_tr1_layer_1.'),
            (r'^backbone\.joining\.(\d)\.', _joining),
            (r'^backbone\.stages\.(\d)\.(\d)\.branches\.(\d)\.(\d)\.', _block),
            (r'^backbone\.stages\.(\d)\.(\d)\.sums\.(\d)\.paths\.(\d)(?:\.(\d))?\.', _path),
            (r'\.convs\.(\d)\.', lambda match: f'.conv{_from_1(match)[0]}.'),
            (r'\.shortcut\.', '.conv_down.'),
            (r'^guess\.', 'head.aux_head.'),
            (r'^pixels\.', 'head.conv3x3_ocr.'),
            (r'^attention\.query\.', 'head.spatial_ocr.attention_block.f_pixel.'),
            (r'^attention\.key\.', 'head.spatial_ocr.attention_block.f_object.'),
            (r'^attention\.value\.', 'head.spatial_ocr.attention_block.f_down.'),
            (r'^attention\.out\.', 'head.spatial_ocr.attention_block.f_up.'),
            (r'^mix\.', 'head.spatial_ocr.conv1x1.0.'),
            (r'^classify\.', 'head.cls_head.'),
            (r'\.conv\.(weight|bias)$', r'._conv.\1'),
            (r'\.norm\.', '._batch_norm.'),
            *PADDLE_BUFFERS,
        ),
    )


def _from_1(match: re.Match[str]) -> list[int]:
    """The numbers of a name, the first being 1."""
    return [int(number) + 1 for number in match.groups() if number is not None]


def _joining(match: re.Match[str]) -> str:
    (number,) = _from_1(match)
    return f'backbone.tr{number}.transition_tr{number}_layer_{number + 1}.'


def _block(match: re.Match[str]) -> str:
    stage, module, branch, block = _from_1(match)
    place = f'st{stage + 1}_{module}'
    return f'backbone.st{stage + 1}.stage_{place}.branches_func.bb_{place}_branch_layer_{branch}_{block}.'


def _path(match: re.Match[str]) -> str:
    stage, module, *steps = _from_1(match)
    place = f'st{stage + 1}_{module}'
    return f'backbone.st{stage + 1}.stage_{place}.fuse_func.residual_{place}_layer_{"_".join(map(str, steps))}.'
