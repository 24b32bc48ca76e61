"""PaddleOCR's configurations -> recipes: the sections that all its tasks share, and the choice of the task.

Rules and defaults are those of its code at 2.7 (tools/program.py, ppocr/optimizer and the constructors that a configuration
names). Its files have no bases.
"""

from pathlib import PurePath
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs import paddleocr_det, paddleocr_table, paddleocr_text
from phalanx.paddle.configs.dialect import (
    IGNORED_IN_ALL,
    Dialect,
    Reading,
    Section,
    as_number,
    convert,
    decay_by,
    multiples,
    norm_sync,
    optimizer_options,
    piecewise_rates,
    with_value,
)
from phalanx.paddle.configs.paddledet_optim import read_ema
from phalanx.paddle.configs.paddleocr_scales import read_multi_scale

OPTIMIZERS = ('Adam', 'AdamW', 'Momentum')
DTYPES = {'float16': 'fp16', 'bfloat16': 'bf16'}
SCHEDULES = ('Const', 'Linear', 'Cosine', 'Step', 'MultiStepDecay', 'Piecewise')


# `model_type` -> module that translates these configurations, with the ALGORITHMS, BACKBONES and HEADS that have a counterpart.
FAMILIES = {'rec': paddleocr_text, 'det': paddleocr_det, 'table': paddleocr_table}
# Beginnings of the names of weight files that hold only a backbone, trained on ImageNet.
OF_BACKBONES = ('MobileNetV3', 'ResNet', 'PPLCNet')

IGNORED = {  # in Global
    'debug': 'Phalanx has no debug mode',
    'distributed': 'the launcher sets the number of devices',
    'log_smooth_window': 'log lines hold means since the last one',
    'save_model_dir': '--save_dir names the run folder',
    'save_epoch_step': 'a checkpoint is saved after every epoch, and checkpoint.keep of them are kept',
    'cal_metric_during_train': 'the metric is that of the evaluation samples',
    'calc_epoch_interval': 'the metric is that of the evaluation samples',
    'save_inference_dir': '`phalanx export` takes its own options',
    'save_res_path': '`phalanx predict` takes its own options',
    'infer_img': '`phalanx predict` takes its own options',
    'infer_mode': '`phalanx predict` takes its own options',
    'load_static_weights': 'the parameter names identify the network of a weight file',
    'character_type': 'it follows from the dictionary',
    'algorithm': 'it follows from Architecture',
    'model_name': 'it follows from Architecture',
    'd2s_train_image_shape': 'it belongs to the export',
    'export_with_pir': 'it belongs to the export',
    'amp_custom_white_list': "torch's autocast knows which operations are safe",
    'amp_custom_black_list': "torch's autocast knows which operations are safe",
    **IGNORED_IN_ALL,
}


def translate(root: Node, reading: Reading) -> Node:
    """Translate the configuration. Keys without counterpart become `reading.problems`, keys without effect `reading.notes`."""
    top = Section(root, '', reading)
    architecture, settings = top.section('Architecture'), top.section('Global')
    # configurations of PaddleOCR 1 have other sections throughout
    if architecture.has('function'):
        node = architecture.take('function')
        architecture.report(node, 'function', 'is of PaddleOCR 1; configurations of 2.0 and later are read')
        return root
    kind = architecture.string('model_type')
    if not _is_known(architecture, kind):
        return root
    train, evaluation = top.section('Train'), top.section('Eval')
    # keys of every family: optimizer, schedule, loader, report
    loaders = train.section('loader'), evaluation.section('loader')
    optimizer, schedule, clip, decay = _optimizer(top.section('Optimizer'), settings)
    datasets = train.section('dataset'), evaluation.section('dataset')
    train_sizes, batch_size = read_multi_scale(train, datasets[0], loaders[0])
    recipe = {
        'train': _train(settings, loaders[0], batch_size),
        'optimizer': optimizer,
        'schedule': schedule,
        'clip': clip,
        'precision': _precision(settings),
        'ema': read_ema(settings),
        'norm_sync': norm_sync(settings.take('use_sync_bn', False)),
        'evaluate': {**_evaluate_every(settings), 'batch_size': loaders[1].take('batch_size_per_card', 1)},
        'checkpoint': {'every_epochs': 1},
        'report': {'every': settings.take('print_batch_step', 10), **_trackers(top, settings)},
        'device': None if settings.take('use_gpu', True).value else 'cpu',
    }
    # keys of this family, which also takes its sections of the data sets
    family = FAMILIES[kind.value].translate(top, architecture, settings, *datasets, decay) | train_sizes
    for key, reason in IGNORED.items():
        settings.ignore(key, reason=reason)
    # keys whose only accepted value is what Phalanx always does
    for loader in loaders:
        message = 'training samples are always shuffled, those of an evaluation never'
        loader.assume('shuffle', loader is loaders[0], message)
        loader.assume('drop_last', False, 'no sample is dropped: the next epoch goes on where this one ends')
        loader.ignore('num_workers', reason='train.workers is the number for both')
        loader.assume('use_shared_memory', True, 'loader workers always hand batches over in shared memory')
    top.ignore('profiler_options', reason=IGNORED_IN_ALL['profiler_options'])
    top.end()
    return top.to_node({**family, **recipe, 'parameters': family.get('parameters')})


def _is_known(architecture: Section, kind: Node) -> bool:
    """True if Phalanx has the model. If not, this is the only problem reported of the file."""
    if kind.value not in FAMILIES:
        architecture.report_value(kind, 'model_type', FAMILIES)
        return False
    family = FAMILIES[kind.value]
    algorithm = architecture.peek('algorithm') or kind
    if algorithm.value not in family.ALGORITHMS:
        architecture.report_value(algorithm, 'algorithm', family.ALGORITHMS)
        return False
    for part, parts in (('Backbone', family.BACKBONES), ('Head', family.HEADS)):
        named = architecture.peek(part, 'name')
        if named is not None and named.value not in parts:
            architecture.report_part(named, f'{part}.name', algorithm.value, part, parts)
            return False
    return True


def _train(settings: Section, loader: Section, batch_size: Node) -> dict[str, Any]:
    keys: dict[str, Any] = {
        'epochs': settings.require('epoch_num'),
        'batch_size_per_rank': batch_size,
        'seed': settings.take('seed', 1024),
        'bad_samples': 10000,  # PaddleOCR replaces samples that cannot be read or encoded, without limit
        'workers': loader.take('num_workers', 8),
    }
    checkpoints = settings.take('checkpoints')
    if checkpoints.value is not None:
        message = 'names the run to go on with only on the command line (-o Global.checkpoints=RUN); take it out of the file'
        settings.report(checkpoints, 'checkpoints', message)
    weights = settings.weights('pretrained_model')
    if weights is not None and PurePath(str(weights.value)).name.startswith(OF_BACKBONES):
        keys['init_part'] = with_value(weights, 'backbone')
    return {**keys, 'init_from': weights}


def _precision(settings: Section) -> dict[str, Any] | None:
    settings.one_of('amp_level', 'O2', 'O1')
    if not settings.take('use_amp', False).value:
        settings.ignore(
            'use_dynamic_loss_scaling', 'scale_loss', 'amp_dtype', reason='it has an effect only with use_amp: True'
        )
        return None
    dynamic, scale = settings.take('use_dynamic_loss_scaling', False), settings.take('scale_loss', 1.0)
    dtype = settings.counterpart(settings.take('amp_dtype', 'float16'), 'amp_dtype', DTYPES)
    return {'dtype': dtype, 'loss_scale': with_value(dynamic, 'dynamic') if dynamic.value else scale}


def _trackers(top: Section, settings: Section) -> dict[str, Any]:
    """VisualDL and W&B. A section `wandb` requests the latter, too, as in PaddleOCR."""
    keys: dict[str, Any] = {'visualdl': settings.take('use_visualdl', False)}
    is_named, options = top.has('wandb'), top.section('wandb')
    if settings.take('use_wandb', False).value or is_named:
        keys['trackers'] = ['tensorboard', {'name': 'wandb', 'project': options.take('project', 'phalanx')}]
    options.ignore(*options.left, reason='environment variables of wandb set it, such as WANDB_ENTITY')
    return keys


def _evaluate_every(settings: Section) -> dict[str, Node]:
    """Interval between evaluations: in epochs, or from [start, interval] in steps, or the interval alone."""
    if (epochs := settings.take('eval_batch_epoch')).value:
        settings.ignore('eval_batch_step', reason='eval_batch_epoch counts')
        return {'every_epochs': epochs}
    node = settings.require('eval_batch_step')
    if not isinstance(node.value, list) or not node.value:
        return {'every': node}
    every: Node = node.value[-1]
    start: Node = node.value[0]
    if len(node.value) > 1 and start.value != 0:
        settings.note(start, 'eval_batch_step', f'the start, {start.value}, is ignored')
    return {'every': every}


def _optimizer(section: Section, settings: Section) -> tuple[Node, Node, Any, Node]:
    """Optimizer, schedule, gradient clipping, and weight decay."""
    kind = section.string('name')
    # the regulariser, or the optimizer's own default of weight decay
    lr, schedule = _schedule(section.section('lr'), settings)
    if section.has('regularizer'):
        regularizer = section.section('regularizer')
        regularizer.expect({'name': 'L2'})
        decay = regularizer.take('factor', 0.0)
    else:
        section.take('regularizer')
        decay = section.take('weight_decay', 0.01) if kind.value == 'AdamW' else section.reading.default(0.0)
    keys: dict[str, Any] = {'lr': lr, 'weight_decay': decay}
    match kind.value:
        case 'Adam' | 'AdamW':
            keys |= optimizer_options(section, kind.value)
            section.expect_defaults({'lazy_mode': False, 'no_weight_decay_name': None, 'one_dim_param_no_weight_decay': False})
        case 'Momentum':
            keys |= {'name': 'sgd', 'momentum': section.require('momentum')}
        case _:
            section.reject_value(kind, 'name', OPTIMIZERS)
    # two kinds of clipping: per tensor, or of the global norm
    clip = None
    for key, per_tensor in (('clip_norm', True), ('clip_norm_global', False)):
        if section.has(key):
            clip = {'norm': section.take(key), 'per_tensor': per_tensor}
    return section.to_node({**keys, 'name': with_value(kind, keys.get('name', ''))}), schedule, clip, decay


def _schedule(section: Section, settings: Section) -> tuple[Node, Node]:
    """Base learning rate and its schedule. PaddleOCR counts from the end of the warm-up, Phalanx from the start of training."""
    kind = section.string('name', 'Const')
    warmup, epochs = section.number('warmup_epoch', 0), as_number(settings.left.get('epoch_num', kind)) or 0.0
    keys: dict[str, Any] = {}
    if kind.value != 'Piecewise':
        lr = section.require('learning_rate')
    # so every boundary moves by the warm-up
    whole = with_value(kind, warmup + epochs)
    match kind.value:
        case 'Const':
            keys = {'name': 'constant'}
        case 'Linear':
            end, power = section.take('end_lr', 0.0), section.take('power', 1.0)
            keys = {'name': 'polynomial', 'epochs': whole, 'end_lr': end, 'power': power}
        case 'Cosine':
            keys = {'name': 'cosine', 'epochs': whole}
        case 'Step':
            size, gamma = max(as_number(section.count('step_size')) or 1.0, 1.0), section.number('gamma')
            decays = [warmup + epoch for epoch in multiples(section, 'step_size', size, epochs // size)]
            keys = decay_by(section, 'boundary_epochs', decays, gamma)
        case 'MultiStepDecay':
            milestones = [convert(node, lambda epoch: epoch + warmup) for node in section.items('milestones')]
            keys = decay_by(section, 'boundary_epochs', milestones, section.number('gamma'))
        case 'Piecewise':
            # absolute rates become factors of the first one
            lr, factors = piecewise_rates(section)
            section.ignore('learning_rate', reason='the first of the values is the rate to begin with')
            listed = section.items('decay_epochs')
            for node in listed[len(factors) :]:
                message = f'the boundary {to_plain(node)} is ignored: there is no rate for the epochs after it'
                section.note(node, 'decay_epochs', message)
            boundaries = [convert(node, lambda epoch: epoch + warmup) for node in listed[: len(factors)]]
            keys = {'name': 'piecewise', 'boundary_epochs': boundaries, 'factors': factors}
        case _:
            section.reject_value(kind, 'name', SCHEDULES)
    section.one_of('last_epoch', -1)
    if warmup:
        keys['warmup_epochs'] = section.node.value['warmup_epoch']
    return lr, section.to_node({**keys, 'name': with_value(kind, keys.get('name', ''))})


DIALECT = Dialect(
    project='PaddleOCR',
    keys={'Global', 'Optimizer', 'Architecture', 'Loss', 'PostProcess', 'Metric', 'Train', 'Eval', 'wandb'},
    recognised_by=({'Global', 'Architecture'},),
    translate=translate,
    evaluates_on_request=False,
    differs=('each epoch sees every sample: none is dropped, and the next one goes on within the same batch',),
)
