"""PaddleDetection's distillation of PP-YOLOE: the configuration of the teacher, which --slim_config names."""

from pathlib import Path
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import Section, as_number
from phalanx.paddle.configs.paddledet_file import read
from phalanx.paddle.configs.paddledet_model import SIZES, is_known, read_initial, read_network

DISTILLED = 0.125  # what PPYOLOEDistill multiplies all losses by


def read_distillation(top: Section, student: Node, initial: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Translate a file for --slim_config: the teacher, the losses against it, and the initial weights of both networks."""
    node = top.take('slim_config')
    if not node.value:
        return {}, initial
    path = Path(str(node.value))
    if not path.is_file():
        top.report(node, 'slim_config', f'there is no file {path}')
        return {}, initial
    # the file is a configuration of its own, with the teacher as its network
    slim = Section(read(path, top.reading), '', top.reading)
    slim.expect({'slim_method': 'PPYOLOEDistill', 'distill_loss': 'DistillPPYOLOELoss'})
    architecture = slim.string('architecture')
    if not is_known(slim, architecture):
        return {}, initial
    teacher = read_network(slim, architecture)[0]
    from_teacher = _from_teacher(slim.section('DistillPPYOLOELoss'), student, teacher)
    weights = {'student': initial.get('init_from'), 'teacher': read_initial(slim).get('init_from')}
    # its data and schedule are those of a separate training of the teacher: not used
    slim.give_up()
    slim.end()
    message = 'the network, its weights and DistillPPYOLOELoss count; the training is that of the other configuration'
    top.note(node, 'slim_config', f'of {path} {message}')
    keys = {'networks': {'teacher': teacher}, 'from_teacher': from_teacher, 'loss_coefficients': [DISTILLED]}
    return keys, {'init_networks': {name: each for name, each in weights.items() if each is not None}}


def _from_teacher(section: Section, student: Node, teacher: Node) -> list[dict[str, Any]]:
    weights, parts = section.section('loss_weight'), section.section('logits_loss_weight')
    relations = section.section('logits_ld_params')
    of_logits, of_features = weights.take('logits', 4.0), weights.take('feat', 1.0)
    learned: list[dict[str, Any]] = []
    # names of the weights of each distilled term
    logits = {
        'weight': of_logits,
        'cls_weight': parts.take('class', 1.0),
        'iou_weight': parts.take('iou', 2.5),
        'dfl_weight': parts.take('dfl', 0.5),
        'classes_weight': relations.take('weight', 20000),
        'temperature': relations.take('T', 10),
    }
    # switches turn terms off; a weight of 0 does, too
    if not section.take('logits_ld_distill', False).value:
        logits['classes_weight'] = section.reading.default(0.0)
    if section.take('logits_distill', True).value and as_number(of_logits) != 0:
        learned.append({'name': 'logits', **logits})
    if section.take('feat_distill', True).value and as_number(of_features) != 0:
        learned.append({'name': 'features', 'weight': of_features})
    section.expect_defaults({'feat_distiller': 'fgd', 'feat_distill_place': 'neck_feats', 'feat_out_channels': [768, 384, 192]})
    # the widths must match the networks, whose feature maps they describe
    widths = {size: width for (_, width), size in SIZES.items()}
    for key, default, network in (('teacher_width_mult', 1.0, teacher), ('student_width_mult', 0.75, student)):
        node, size = section.take(key, default), str(network.value['size'].value)
        if as_number(node) != widths.get(size):
            section.report(node, key, f'{to_plain(node)} is not that of the network, which has the size {size!r}')
    return learned
