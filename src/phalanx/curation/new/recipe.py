"""Text of a complete recipe for a data set, with comments where a user may want to change something."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from phalanx.config.read import read, to_plain
from phalanx.config.shipped import shipped_recipes
from phalanx.curation.new import plan
from phalanx.curation.new.plan import Length, Node
from phalanx.curation.new.published import Start
from phalanx.curation.prepare.samples import Family
from phalanx.curation.prepare.targets import Written
from phalanx.engine.finetune import BUDGETS

PLAIN_EPOCHS = 20  # of a detector's training, at its end: objects are as large as in the evaluation (docs/benchmarks.md)
FROM_BASE = ('model', 'loss', 'parameters', 'clip')  # of the recipe of a published detector
LARGE_PAGE = 1280  # pixels of the longer side, to which larger pages are reduced
SPAN, PUBTABNET_SPANS = re.compile(r'(?:col|row)span="(\d+)"'), range(2, 11)
READING = (
    'metric:                          # case, blanks and punctuation count\n  name: reading\n'
    '  ignore_space: false\n  alphanumeric_only: false'
)


def compose_recipe(
    family: Family,
    written: Written,
    length: Length,
    node: Node,
    head: Sequence[str],
    start: Start | None,
    settings: Mapping[str, object],
) -> str:
    """Compose the recipe.

    `head`: lines of the comment at its top; `start`: published weights to fine-tune, if any; `settings`: keys that short runs
    of fine-tuning chose.
    """
    about = '\n'.join(f'# {line}'.rstrip() for line in head)
    data = '\n'.join(['data:', *(f'  {name}: {_format_yaml(value)}' for name, value in written.data.items())])
    if start and family != 'detection':
        own = (f'_base_: {start.base}', data, *FITTED[family](written, node), *_write_keys(length, start, settings))
        return '\n\n'.join([about, *own]) + '\n'
    about_bands = '# of each band, as a share of its largest value'
    colours = [f'{about_bands}\nmean: {written.mean}\nstd: {written.std}'] if written.mean else []
    parts = FAMILY[family](written, length, node)
    if start:  # the schedules of published detectors are hundreds of epochs long: only the network is from there
        parts = _exchange_network(parts, start, length, settings)
    initial = _initial(start, settings) if start else ''
    blocks = [about, f'task: {family}', data, *colours, *parts, *_general(family, written, length, node, initial)]
    return '\n\n'.join(blocks) + '\n'


def _format_yaml(value: Any) -> str:
    """Format a value as flow-style YAML, on several lines if it is long."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=110, sort_keys=False)
    return text.removesuffix('\n').removesuffix('\n...').strip().replace('\n', '\n    ')


def _detection(written: Written, length: Length, node: Node) -> list[str]:
    side = plan.detection_side(written, node)
    stop = length.epochs - PLAIN_EPOCHS
    step = 64 if side >= 512 else 32
    reach = step * (2 if stop > 0 else 1)
    sizes = [size for size in range(side - reach, side + reach + 1, step) if size >= 64] or [side]
    flip = '  - random_flip                  # take it out where mirrored objects are others (left, right)'
    no_flip = '  # no random_flip: mirrored, these classes would not be themselves'
    turned = flip if plan.can_mirror(written.class_names) else no_flip
    strong = (
        f'  # not in the last {PLAIN_EPOCHS} epochs, so that objects are as large as in the evaluation\n'
        f'  - {_expand(written, stop)}\n  - {{name: random_crop, stop_epoch: {stop}}}\n'
    )
    augmented = (
        f'transforms:\n  - {_distort(written)}\n{strong if stop > 0 else ""}{turned}\n'
        f'  - {{name: batch_random_resize, sizes: {sizes}, interpolation: linear}}',
        'eval_transforms:                 # small objects need more pixels\n'
        f'  - {{name: resize, target_size: [{side}, {side}], interpolation: cubic}}',
    )
    if windows := plan.choose_windows(written, node):
        window, stride, reason = windows
        augmented = (
            f'# {reason}\ntransforms:\n  - {{name: random_window, target_size: [{window}, {window}]}}\n'
            f'  - {_distort(written)}\n{turned}',
            'eval_transforms: []              # windows of the whole image, which overlap by the length of an object\n'
            f'inference:\n  window: [{window}, {window}]\n  window_stride: [{stride}, {stride}]\n'
            'nms:\n  keep_top_k: 1000               # objects per image, at most',
        )
    even = plan.explain_imbalance(written)
    size, larger, rate = ('s', 'm, l, x', 5.0e-4) if node.has_gpu else ('n', 't, s, m, l, x', 1.0e-3)
    return [
        f'model:\n  name: ppyoloe\n  plus: true\n'
        f'  size: {size}                        # or {larger}: with many images, and more time',
        'loss:\n  name: task_aligned',
        'metric:\n  name: coco',
        *([f'# {even}\nsampling:\n  name: class_balanced'] if even else []),
        *augmented,
        _optimizer('adamw', rate * (length.batch / 8) ** 0.5, 0.05),
    ]


def _exchange_network(parts: Sequence[str], start: Start, length: Length, settings: Mapping[str, object]) -> list[str]:
    """Put the network of `start`, its loss, and how its parameters are trained into the `parts` of a detector's recipe."""
    base = to_plain(read(shipped_recipes()[start.base]))
    base['loss'].pop('matcher_change_epoch', None)
    if 'static_assigner_epochs' in base['loss']:
        base['loss']['static_assigner_epochs'] = 0  # the network can already locate objects
    network = [f'{key}: {_format_yaml(base[key])}' for key in FROM_BASE if key in base]
    lr = float(str(settings.get('optimizer.lr', BUDGETS['detection'].lr * (length.batch / 8) ** 0.5)))
    norms = [f'norm_sync: {settings["norm_sync"]}'] if 'norm_sync' in settings else []
    return [f'# as in {start.base}\n' + '\n'.join(network), *parts[2:-1], _optimizer('adamw', lr, 0.01), *norms]


def _initial(start: Start, settings: Mapping[str, object]) -> str:
    """Keys below `train` for initial weights, and for the parts of the network that short runs froze."""
    freeze = f'\n  freeze: {_format_yaml(settings["train.freeze"])}' if 'train.freeze' in settings else ''
    return f'\n  init_from: {_format_yaml(str(start.weights))}{freeze}'


def _distort(written: Written, strength: float | None = None) -> str:
    """Colour augmentation as an entry of `transforms`; other bands than RGB have no saturation and hue."""
    options = {} if strength is None else dict.fromkeys(('brightness', 'contrast', 'saturation'), strength)
    if written.mean:
        options = {**options, 'saturation_probability': 0, 'hue_probability': 0}
        options.pop('saturation', None)
    return _format_yaml({'name': 'random_distort', **options}) if options else 'random_distort'


def _expand(written: Written, stop_epoch: int) -> str:
    fill = {'fill': [round(value * (2 ** written.data['bands']['bits'] - 1)) for value in written.mean]} if written.mean else {}
    return _format_yaml({'name': 'random_expand', 'ratio': 2.0, **fill, 'stop_epoch': stop_epoch})


def _segmentation(written: Written, length: Length, node: Node) -> list[str]:
    long, crop = plan.segmentation_sides(written, node)
    weights = _format_yaml(plan.compute_class_weights(written))
    scale = '0.75, max: 1.5' if crop >= long else '0.5, max: 2.0'
    return [
        'model:\n  name: pp_liteseg\n  backbone: stdc1'
        + ('' if node.has_gpu else '\n  width: 0.5                     # of the published channels; 1.0: with more time'),
        'loss:                            # of the three heads; the weights even out how many pixels each class has\n'
        f'  - {{name: cross_entropy, class_weights: &weights {weights}}}\n'
        '  - {name: cross_entropy, class_weights: *weights}\n  - {name: cross_entropy, class_weights: *weights}\n'
        'loss_coefficients: [1.0, 0.4, 0.4]',
        f'transforms:\n  - {{name: resize_by_long, side: {long}}}\n'
        f'  - {{name: resize_step_scaling, min: {scale}, step: 0.125}}\n'
        f'  - {{name: random_padding_crop, crop_size: [{crop}, {crop}]}}\n'
        '  - random_flip                  # take it out where left and right differ\n'
        f'  - {_distort(written, 0.4)}',
        'eval_transforms:                 # results come back in the size of the image\n'
        f'  - {{name: resize_by_long, side: {long}}}',
        _optimizer('adamw', 1.0e-3 * (length.batch / 8) ** 0.5, 0.05),
    ]


def _reader(written: Written, node: Node) -> list[str]:
    """Keys of a recogniser's recipe that differ from the base of its published weights."""
    return [_characters(written), f'image_size: [48, {plan.wide_line(written, node)}]', READING]


def _tables(written: Written, node: Node) -> list[str]:
    """The same for SLANet."""
    unlocated = (
        'loss_coefficients: [1.0, 0.0]    # no cell has a box: their places are not learned\nmain_metric: teds_structure'
    )
    longest = plan.max_tokens(written, node, has_weights=True)
    return [
        *([] if written.cell_boxes else [unlocated]),
        f'max_length: {longest}                  # tokens; longer tables are not trained on',
    ]


def _detector(written: Written, node: Node) -> list[str]:
    """The same for the text detector."""
    if plan.long_side(written.sizes) <= LARGE_PAGE:
        return []
    smaller = f'  - {{name: limit_side, side: {LARGE_PAGE}, limit: max}}  # small texts need more pixels'
    return [
        f'transforms:\n{smaller}\n  - random_flip\n  - {{name: random_rotate, degrees: [-10, 10]}}\n'
        '  - {name: random_resize, scale: [0.5, 3.0]}\n  - {name: random_crop, crop_size: [480, 480]}',
        f'eval_transforms:\n{smaller}',
    ]


FITTED: dict[Family, Callable[[Written, Node], list[str]]] = {
    'recognition': _reader,
    'table': _tables,
    'text_detection': _detector,
}


def _write_keys(length: Length, start: Start, settings: Mapping[str, object]) -> list[str]:
    """Keys for length, initial weights, evaluation and checkpoints of fine-tuning, and the `settings` of short runs."""
    initial = _initial(start, settings)
    return [
        f'train:\n  epochs: {length.epochs:<22} # {length.steps:,} steps\n  global_batch_size: {length.batch}\n'
        f'  bad_samples: 5                 # images that cannot be read are skipped, up to this number{initial}',
        *([f'optimizer:\n  lr: {settings["optimizer.lr"]:<24} # best of short runs'] if settings else []),
        *([f'norm_sync: {settings["norm_sync"]}'] if 'norm_sync' in settings else []),
        f'schedule:\n  warmup_steps: {length.warmup_steps}',
        f'evaluate:\n  every_epochs: {length.evaluate_epochs}',
        f'checkpoint:\n  every_epochs: {length.evaluate_epochs}',
    ]


def _characters(written: Written) -> str:
    file, has_space = written.out / 'characters.txt', ' ' in written.units
    return (
        'characters:                      # others cannot be read\n'
        f'  dictionary: {_format_yaml(str(file))}\n  space: {str(has_space).lower()}\n  max_length: {written.longest}'
    )


def _recognition(written: Written, length: Length, node: Node) -> list[str]:
    size = plan.line_size(written, node)
    size_of_network = 'large' if node.has_gpu else 'small'
    return [
        f'model:\n  name: crnn\n  backbone: {{name: mobilenet_v3, size: {size_of_network}}}   # small or large\n'
        f'  hidden_size: {96 if node.has_gpu else 48}',
        'loss:\n  name: ctc',
        _characters(written),
        '# height, width; for each character there must be four pixels of width\n'
        f'image_size: [32, {size.width}]\n'
        f'keep_ratio: {str(size.keep_ratio).lower()}',
        'transforms:\n  - rec_aug' if length.batch * length.steps > 20_000 else 'transforms: []',
        READING,
        _optimizer('adam', 1.0e-3 * (length.batch / 16) ** 0.5, 0.0),
        'clip:\n  norm: 5.0',
    ]


def _table(written: Written, length: Length, node: Node) -> list[str]:
    side = 488 if node.has_gpu else min(256, max(64, max(max(size) for size in written.sizes)))
    longest = plan.max_tokens(written, node, has_weights=False)
    located = '2.0]' if written.cell_boxes else '0.0]      # no cell has a box: their places are not learned'
    return [
        'model:\n  name: slanet',
        'loss: [structure, smooth_l1]     # of the tokens, and of the boxes of cells\n' + f'loss_coefficients: [1.0, {located}',
        f'image_size: {side}                  # the longer side of an image; small print needs more\n'
        f'max_length: {longest}                  # tokens; longer tables are not trained on',
        *_more_tokens(written),
        f'main_metric: {"teds" if written.cell_boxes else "teds_structure"}',
        _optimizer('adam', 1.0e-3, 0.0),
        'clip:\n  norm: 5.0\n  per_tensor: true',
    ]


def _more_tokens(written: Written) -> list[str]:
    """Key with the spans of the tables that PubTabNet lacks, which the vocabulary then has."""
    spans = {token.strip(): SPAN.search(token) for token in written.units}
    more = sorted(token for token, span in spans.items() if span and int(span[1]) not in PUBTABNET_SPANS)
    return [f'more_tokens: {_format_yaml(more)}'] if more else []


def _text_detection(written: Written, length: Length, node: Node) -> list[str]:
    side, crop = plan.text_sides(written, node)
    model = 'pp_lcnet_v3\n  neck: rse_fpn\n  neck_channels: 96' if node.has_gpu else 'mobilenet_v3\n  neck_channels: 48'
    return [
        f'model:\n  name: db\n  backbone: {model}',
        'loss:\n  name: db',
        'transforms:\n  - random_distort\n  - random_flip\n  - {name: random_rotate, degrees: [-10, 10]}\n'
        f'  - {{name: random_crop, crop_size: [{crop}, {crop}]}}   # its edges go through no text',
        f'eval_transforms:                 # small texts need more pixels\n  - {{name: limit_side, side: {side}, limit: max}}',
        'post_processing:\n  shape: quad                    # or polygon, for curved text',
        _optimizer('adam', 1.0e-3 * (length.batch / 8) ** 0.5, 0.0),
    ]


FAMILY: dict[Family, Callable[[Written, Length, Node], list[str]]] = {
    'detection': _detection,
    'segmentation': _segmentation,
    'recognition': _recognition,
    'table': _table,
    'text_detection': _text_detection,
}


def _optimizer(name: str, lr: float, decay: float) -> str:
    weight_decay = f'\n  weight_decay: {decay}' if decay else ''
    return f'optimizer:\n  name: {name}\n  lr: {float(f"{lr:.2g}")}{weight_decay}'


def _general(family: Family, written: Written, length: Length, node: Node, initial: str) -> list[str]:
    """Keys for length, schedule, EMA, evaluation and checkpoints."""
    workers = min(8, node.cores) if node.has_gpu else min(2, node.cores - 1)
    are_alike = family in ('recognition', 'detection', 'table') and not plan.choose_windows(written, node)
    several = length.batch if are_alike else 1
    blocks = [
        f'train:\n  epochs: {length.epochs:<22} # {length.steps:,} steps; longer is better, up to a point\n'
        f'  global_batch_size: {length.batch}\n  workers: {workers}\n  channels_last: true\n'
        f'  bad_samples: 5                 # images that cannot be read are skipped, up to this number{initial}',
        f'schedule:\n  name: cosine\n  warmup_steps: {length.warmup_steps}',
    ]
    if length.ema_decay:
        blocks.append(
            f'ema:                             # the averaged weights are evaluated\n  kind: ramp\n  decay: {length.ema_decay}'
        )
    if node.bf16:
        blocks.append('precision:\n  dtype: bf16                    # faster here than fp32; weights stay float32')
    blocks.append(f'evaluate:\n  every_epochs: {length.evaluate_epochs}\n  batch_size: {several}')
    blocks.append(f'checkpoint:\n  every_epochs: {length.evaluate_epochs}')
    return blocks
