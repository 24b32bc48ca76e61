"""Keys as recipes had them before: read for one version more, with a note of what they are called now."""

from typing import Any

from phalanx.config.read import ConfigError, Node, plain

NOW: dict[str, tuple[str, ...]] = {  # the key -> where its value stands now
    'losses': ('loss',),
    'judged_by': ('main_metric',),
    'location_loss': ('loss', '1'),
    'structure_coefficient': ('loss_coefficients', '0'),
    'location_coefficient': ('loss_coefficients', '1'),
}
LISTS = {  # of tables, where a recipe says a part of them
    'loss': tuple({'name': Node(name, 'default', name)} for name in ('structure', 'smooth_l1')),
    'loss_coefficients': (1.0, 2.0),
}
# Sizes that were (width, height), and what they are called since they are (height, width).
SIZES_OF_RECIPES = {'size': 'image_size', 'train_sizes': 'train_image_sizes'}
SIZES_OF_SECTIONS = {'inference': {'crop': 'window', 'stride': 'window_stride'}, 'concatenate': {'size': 'image_size'}}
SIZES_OF_PAGES = {'size': 'page_size'}
SIZES_OF_TRANSFORMS = {
    **{name: {'size': 'target_size'} for name in ('resize', 'padding', 'mosaic')},
    **{name: {'size': 'crop_size'} for name in ('random_crop', 'random_padding_crop')},
}


def renamed(root: Node, notes: list[str]) -> Node:
    """A recipe with the keys of now; adds to `notes` which it had.

    Raises ConfigError where it has a key and its successor, or a size whose two numbers stand in another order now.
    """
    keys = dict(root.value)
    for old in [key for key in NOW if key in keys]:
        node, (new, *place) = keys.pop(old), NOW[old]
        notes.append(_note(node.origin, old, _shown(old)))
        if new in root.value:
            raise ConfigError([f'{node.origin}: {old}: is now {_shown(old)}, which the recipe has too; take {old} out'])
        if place:
            before = keys[new].value if new in keys else [Node(value, node.origin) for value in LISTS[new]]
            keys[new] = Node([node if str(at) in place else one for at, one in enumerate(before)], node.origin)
        else:
            keys[new] = node
    return _with_metric(_with_sizes(Node(keys, root.origin, root.text), notes), notes)


def with_new_names(root: Node, notes: list[str]) -> Node:
    """The recipe with its assignments, with the names of now where it chooses by name; adds to `notes` which it had."""
    root = _with_metric(_with_sizes(root, notes), notes)
    data = root.value.get('data')
    name = data.value.get('name') if data is not None and isinstance(data.value, dict) else None
    if name is None or name.value != 'voc':
        return root
    notes.append(f'{name.origin}: data.name: voc is called pascal_voc now; the old name will be refused by the next version')
    keys = {**data.value, 'name': Node('pascal_voc', name.origin, 'pascal_voc')}
    return Node({**root.value, 'data': Node(keys, data.origin)}, root.origin)


def reassigned(assignment: str, origin: str, notes: list[str]) -> str:
    """The same of `losses.0.name=ohem`, an assignment on the command line."""
    old, *rest = assignment.partition('=')[0].strip().split('.')
    if old not in NOW:
        return assignment
    notes.append(_note(origin, old, _shown(old)))
    return '.'.join([*NOW[old], *rest]) + '=' + assignment.partition('=')[2]


def _with_metric(root: Node, notes: list[str]) -> Node:
    """The recipe with the options of recognition's metric, which were `compare`, under it."""
    compare = root.value.get('compare')
    if compare is None or not isinstance(compare.value, dict):
        return root
    notes.append(
        f'{compare.origin}: compare: is now metric: {{name: reading, ...}}; the old key will be refused by the next version'
    )
    reading = Node({'name': Node('reading', compare.origin, 'reading'), **compare.value}, compare.origin)
    return Node(
        {**{key: node for key, node in root.value.items() if key != 'compare'}, 'metric': reading}, root.origin, root.text
    )


def _with_sizes(root: Node, notes: list[str]) -> Node:
    """The recipe with sizes under the names that they have since they are (height, width)."""
    problems: list[str] = []
    keys = _turned(root.value, SIZES_OF_RECIPES, '', notes, problems)
    data = keys.get('data')
    is_drawn = data is not None and isinstance(data.value, dict) and plain(data).get('name') == 'drawn_pages'
    for section, names in {**SIZES_OF_SECTIONS, **({'data': SIZES_OF_PAGES} if is_drawn else {})}.items():
        if section in keys and isinstance(keys[section].value, dict):
            inner = _turned(keys[section].value, names, f'{section}.', notes, problems)
            keys[section] = Node(inner, keys[section].origin)
    for section in ('transforms', 'eval_transforms'):
        if section in keys and isinstance(keys[section].value, list):
            steps = []
            for place, step in enumerate(keys[section].value):
                name = plain(step).get('name') if isinstance(step.value, dict) else None
                names = SIZES_OF_TRANSFORMS.get(str(name), {})
                inner = _turned(step.value, names, f'{section}.{place}.', notes, problems) if names else step.value
                steps.append(Node(inner, step.origin, step.text))
            keys[section] = Node(steps, keys[section].origin)
    if problems:
        raise ConfigError(problems)
    return Node(keys, root.origin, root.text)


def _turned(keys: dict[str, Node], names: dict[str, str], where: str, notes: list[str], problems: list[str]) -> dict[str, Node]:
    """`keys` with the `names` of now for sizes, which are square; others are problems."""
    found = dict(keys)
    for old, new in names.items():
        if old not in found:
            continue
        node = found.pop(old)
        given = plain(node)
        turned = [_backwards(pair) for pair in given] if old == 'train_sizes' else _backwards(given)
        if new in found:
            problems.append(
                f'{node.origin}: {where}{old}: is now {new}, [height, width], which the recipe has too; take {old} out'
            )
        elif turned == given:  # squares
            notes.append(_note(node.origin, where + old, where + new))
            found[new] = node
        else:
            problems.append(
                f'{node.origin}: {where}{old}: was [width, height]; write {new}: {turned}, which is [height, width]'
            )
    return found


def _backwards(size: Any) -> Any:
    return size[::-1] if isinstance(size, list) else size


def _note(origin: str, old: str, new: str) -> str:
    return f'{origin}: {old}: is called {new} now; the old key will be refused by the next version'


def _shown(old: str) -> str:
    return '.'.join(NOW[old])
