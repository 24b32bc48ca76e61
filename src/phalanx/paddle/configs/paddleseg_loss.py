"""PaddleSeg's `loss`: a loss for each output of the network, and their coefficients."""

from typing import Any

from phalanx.config.read import Node
from phalanx.paddle.configs.dialect import Counterpart, Section, convert, with_value

LOSSES = {
    'CrossEntropyLoss': Counterpart(
        'cross_entropy',
        {'class_weights': ('weight', None), 'avg_non_ignore': ('avg_non_ignore', True), 'top_k': ('top_k_percent_pixels', 1.0)},
        fixed={'data_format': 'NCHW'},
    ),
    'OhemCrossEntropyLoss': Counterpart(
        'ohem', {'threshold': ('thresh', 0.7), 'min_kept_per_sample': ('min_kept', 10000), 'class_weights': ('weight', None)}
    ),
    'DiceLoss': Counterpart('dice', {'class_weights': ('weight', None), 'smooth': ('smooth', 1.0)}),
    'LovaszSoftmaxLoss': Counterpart('lovasz', fixed={'classes': 'present'}),
    'LovaszHingeLoss': Counterpart('lovasz_hinge'),
    'RMILoss': Counterpart('rmi', fixed={'rmi_radius': 3, 'rmi_pool_way': 0, 'rmi_pool_size': 3, 'rmi_pool_stride': 3}),
    'SemanticConnectivityLoss': Counterpart(
        'semantic_connectivity', {'most': ('max_pred_num_conn', 10)}, fixed={'use_argmax': True}
    ),
}
MIXED = 'MixedLoss'  # a weighted sum of others


def read_losses(section: Section, batch_size: float) -> tuple[list[Node], Node]:
    """Translate the losses of the outputs, and their coefficients."""
    coefficients = section.require('coef')
    count = len(coefficients.value) if isinstance(coefficients.value, list) else 0
    losses = [_loss(each, batch_size) for each in section.sections('types')]
    if len(losses) == 1:  # stands for all outputs
        losses = losses * count
    if len(losses) != count:
        section.report(section.node, 'types', f'there are {len(losses)} losses and {count} coefficients')
    return losses, coefficients


def _loss(section: Section, batch_size: float) -> Node:
    kind = section.string('type')
    name, keys = '', dict[str, Any]()
    if kind.value == MIXED:
        name, losses = 'mixed', [_loss(each, batch_size) for each in section.sections('losses')]
        keys = {'losses': losses, 'coefficients': section.require('coef')}
    elif kind.value in LOSSES:
        counterpart = LOSSES[kind.value]
        name, keys = counterpart.name, counterpart.take_options(section)
    else:
        section.reject_value(kind, 'type', (*LOSSES, MIXED))
    if name == 'ohem':  # theirs counts pixels of the batch of one rank
        keys['min_kept_per_sample'] = convert(keys['min_kept_per_sample'], lambda pixels: pixels / batch_size)
    if name == 'rmi':
        section.ignore('num_classes', reason='the data set has them')
        section.ignore('loss_weight_lambda', reason='it has no effect in PaddleSeg either')
    section.one_of('ignore_index', 255)
    return section.to_node({'name': with_value(kind, name), **keys})
