"""Several image sizes in one training of PaddleOCR's text recognition: MultiScaleDataSet and its sampler."""

import math
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import Section, as_number, with_value


def is_multi_scale(dataset: Section) -> bool:
    kind = dataset.peek('name')
    return kind is not None and kind.value == 'MultiScaleDataSet'


def read_multi_scale(train: Section, dataset: Section, loader: Section) -> tuple[dict[str, Any], Node]:
    """Sizes (height, width) of training from a multi-scale sampler, and the number of samples per step and rank.

    With `fix_bs` false, steps with smaller images have more samples in PaddleOCR. Here every step has their mean, so that an
    epoch has the same number of steps.
    """
    if not is_multi_scale(dataset):
        return {}, loader.require('batch_size_per_card')
    # sizes, and samples per step at the first of them
    sampler = train.section('sampler')
    sampler.expect({'name': 'MultiScaleSampler'})
    sampler.one_of('is_training', True)
    first, is_fixed = sampler.take('first_bs', 128), bool(sampler.take('fix_bs', True).value)
    factors = _pair_of_numbers(sampler.take('divided_factor', [8, 16])) or (1.0, 1.0)
    loader.assume('batch_size_per_card', to_plain(first), 'Train.sampler.first_bs sets it')
    sampler.ignore('ratio_wh', 'max_w', reason='the widths are those of `scales`')
    listed = sampler.items('scales')
    scales = [scale for scale in map(_pair_of_numbers, listed) if scale is not None]
    if len(scales) < len(listed) or not scales:
        return {'train_image_sizes': listed}, first  # reported when the recipe is bound
    # PaddleOCR rounds each side down to a multiple
    sizes = [[int(side // max(by, 1) * max(by, 1)) for side, by in zip(scale, factors, strict=True)] for scale in scales]
    of_nodes = zip(listed, sizes, strict=True)
    keys = {
        'train_image_sizes': [Node([with_value(node, side) for side in size[::-1]], node.origin) for node, size in of_nodes]
    }
    if [*map(list, scales)] != sizes:
        message = f'sides are rounded down to multiples of {factors[0]:g} and {factors[1]:g}'
        sampler.note(listed[0], 'scales', message)
    # with a fixed batch size, all steps have the same number of samples there, too
    count = as_number(first)
    if is_fixed or count is None:
        return keys, first
    base = math.prod(scales[0]) * count
    counts = [max(1, base // max(math.prod(size), 1)) for size in sizes]
    mean = round(sum(counts) / len(counts))
    message = f'every step has {mean} samples, the mean of what steps have there by their size'
    sampler.note(first, 'first_bs', message)
    return keys, with_value(first, mean)


def _pair_of_numbers(node: Node) -> tuple[float, float] | None:
    """Two numbers, or one number that stands for both; None for anything else."""
    listed = node.value if isinstance(node.value, list) else [node, node]
    numbers = [as_number(each) for each in listed]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return numbers[0], numbers[1]
