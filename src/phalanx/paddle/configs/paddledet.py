"""PaddleDetection's configurations -> recipes: PP-YOLOE, PP-YOLOE+, RT-DETR and RT-DETRv2 on COCO or VOC.

Rules and defaults are those of its release 2.6 (ppdet/core/workspace.py, ppdet/optimizer and the classes that a configuration
names). A configuration is a set of sections called like these classes, and of values that several of them share.
"""

from typing import Any

from phalanx.config.read import Node
from phalanx.paddle.configs.dialect import IGNORED_IN_ALL, Dialect, Reading, Section, with_value
from phalanx.paddle.configs.paddledet_data import read_data, read_metric, read_transforms
from phalanx.paddle.configs.paddledet_detr import PARTS, read_detr
from phalanx.paddle.configs.paddledet_distillation import read_distillation
from phalanx.paddle.configs.paddledet_file import BASE, read
from phalanx.paddle.configs.paddledet_model import METHODS, is_known, read_initial, read_network
from phalanx.paddle.configs.paddledet_optim import read_ema, read_optimizer, read_parameters, read_schedule

NORMS = {'bn': 'off', 'sync_bn': 'global'}
IGNORED = {
    'save_dir': '--save_dir names the run folder',
    'weights': 'name the weights to evaluate with --weights',
    'print_flops': 'Phalanx does not count FLOPs here',
    'print_params': 'the number of parameters is always reported',
    'for_distill': 'distillation requires --slim_config; without it, the network trains alone',
    'reset_norm_param_attr': 'weight decay of norms follows from param_groups',
    'export': '`phalanx export` takes its own options',
    'TestReader': '`phalanx predict` prepares images as the evaluation does',
    'TestDataset': '`phalanx predict` takes images on its command line',
    'num_classes': 'it follows from the annotations or their list of classes',
    'EvalMOTDataset': 'there is no tracking; EvalDataset is evaluated',
    'TestMOTDataset': 'there is no tracking; EvalDataset is evaluated',
    'custom_black_list': "torch's autocast knows which operations are safe",
    'custom_white_list': "torch's autocast knows which operations are safe",
    'use_vdl': 'metrics.jsonl and TensorBoard records are always written; --use_vdl adds VisualDL',
    **dict.fromkeys(('eval_height', 'eval_width', 'eval_size'), 'it only names a value that others refer to'),
    **dict.fromkeys(('output_eval', 'save_prediction_only'), '`phalanx predict` writes results'),
    'classwise': '`phalanx eval` always lists the classes',
    'fleet': 'the launcher sets the number of devices',
    **IGNORED_IN_ALL,
}


def translate(root: Node, reading: Reading) -> Node:
    """Translate the configuration. Keys without counterpart become `reading.problems`, keys without effect `reading.notes`."""
    top = Section(root, '', reading)
    architecture = top.string('architecture')
    if not is_known(top, architecture):
        return root
    # each reader takes its keys from the sections and returns keys of a recipe
    is_detr, nms = architecture.value == 'DETR', None
    frozen: dict[str, Any] = {}
    if is_detr:
        model, loss, frozen, of_backbone = read_detr(top)
    else:
        model, loss, nms = read_network(top, architecture)
    lr, schedule = read_schedule(top.section('LearningRate'))
    optimizer, clip, groups = read_optimizer(top.section('OptimizerBuilder'), lr)
    parameters = read_parameters(model, optimizer)
    if is_detr:
        parameters = {**groups, 'rules': groups['rules'] or of_backbone['rules']}
    train, evaluation = top.section('TrainReader'), top.section('EvalReader')
    # normalisation is a transform there, and a key of the recipe here: both splits must agree
    transforms, normalise = read_transforms(train)
    eval_transforms, eval_normalise = read_transforms(evaluation)
    evaluation.expect_options(None, normalise, eval_normalise, 'NormalizeImage differs from that of TrainReader')
    snapshots, initial = top.take('snapshot_epoch', 1), read_initial(top)
    # a file of --slim_config adds the teacher, and moves the initial weights to `init_networks`
    distillation, initial = read_distillation(top, model, initial)
    recipe = {
        'task': 'detection',
        'model': model,
        'loss': loss,
        **distillation,
        'nms': nms,
        'metric': read_metric(top),
        'data': read_data(top),
        'transforms': transforms,
        'eval_transforms': eval_transforms,
        **normalise,
        'train': {
            'epochs': top.require('epoch'),
            'batch_size_per_rank': train.require('batch_size'),
            'workers': top.take('worker_num', 2),
            **frozen,
            **initial,
        },
        'optimizer': optimizer,
        'parameters': parameters,
        'clip': clip,
        'schedule': schedule,
        'ema': read_ema(top),
        'norm_sync': _norm_sync(top),
        'evaluate': {'every_epochs': snapshots, 'batch_size': evaluation.take('batch_size', 1)},
        'checkpoint': {'every_epochs': snapshots},
        'report': {'every': top.take('log_iter', 20)},
        'device': None if top.take('use_gpu', True).value else 'cpu',
    }
    # keys whose only accepted value is what Phalanx always does
    for reader in (train, evaluation):
        reader.assume('shuffle', reader is train, 'training samples are always shuffled, those of an evaluation never')
        reader.assume('drop_last', False, 'no sample is dropped: the next epoch goes on where this one ends')
        reader.assume('drop_empty', False, 'TrainDataset.allow_empty says whether to train on images without objects')
        reader.assume('use_shared_memory', True, 'loader workers always hand batches over in shared memory')
        reader.assume('collate_batch', True, 'images always become one batch, and boxes stay in lists')
    for key, reason in IGNORED.items():
        top.ignore(key, reason=reason)
    # reports every key that nobody has taken
    top.end()
    return top.to_node(recipe)


def _norm_sync(top: Section) -> Node:
    kind = top.take('norm_type', 'bn')
    if str(kind.value) not in NORMS:
        top.report_value(kind, 'norm_type', NORMS)
    return with_value(kind, NORMS.get(str(kind.value), 'off'))


DIALECT = Dialect(
    project='PaddleDetection',
    keys={
        *('architecture', 'epoch', 'depth_mult', 'width_mult', 'snapshot_epoch', 'log_iter', 'worker_num', 'norm_type'),
        *('use_ema', 'ema_decay', 'use_gpu', 'pretrain_weights', 'num_classes', 'map_type', 'LearningRate'),
        *('OptimizerBuilder', 'TrainReader', 'EvalReader', 'TestReader', 'TrainDataset', 'EvalDataset', 'TestDataset'),
        *('YOLOv3', 'PPYOLOE', 'slim_config', 'CSPResNet', 'CustomCSPPAN', 'PPYOLOEHead', *METHODS),
        *IGNORED,
        *('DETR', 'hidden_dim', 'use_focal_loss', *(name for names in PARTS.values() for name in names)),
    },
    bases=BASE,
    recognised_by=tuple({'architecture', key} for key in ('LearningRate', 'OptimizerBuilder', 'TrainReader', 'TrainDataset')),
    read=read,
    translate=translate,
    differs=('each epoch sees every sample: none is dropped, and the next one goes on within the same batch',),
)
