"""Keys as recipes had them before: read for one version more, with a note of what they are called now."""

from __future__ import annotations

from phalanx.config.read import ConfigError, Node

NOW: dict[str, tuple[str, ...]] = {  # the key -> where its value stands now
    'losses': ('loss',),
    'location_loss': ('loss', '1'),
    'structure_coefficient': ('loss_coefficients', '0'),
    'location_coefficient': ('loss_coefficients', '1'),
}
LISTS = {  # of tables, where a recipe says a part of them
    'loss': tuple({'name': Node(name, 'default', name)} for name in ('structure', 'smooth_l1')),
    'loss_coefficients': (1.0, 2.0),
}


def renamed(root: Node, notes: list[str]) -> Node:
    """A recipe with the keys of now; adds to `notes` which it had. Raises ConfigError where it has a key and its successor."""
    keys = dict(root.value)
    for old in [key for key in NOW if key in keys]:
        node, (new, *place) = keys.pop(old), NOW[old]
        notes.append(_note(node.origin, old))
        if new in root.value:
            raise ConfigError([f'{node.origin}: {old}: is now {_shown(old)}, which the recipe has too; take {old} out'])
        if place:
            before = keys[new].value if new in keys else [Node(value, node.origin) for value in LISTS[new]]
            keys[new] = Node([node if str(at) in place else one for at, one in enumerate(before)], node.origin)
        else:
            keys[new] = node
    return Node(keys, root.origin, root.text)


def with_new_names(root: Node, notes: list[str]) -> Node:
    """The recipe with its assignments, with the names of now where it chooses by name; adds to `notes` which it had."""
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
    notes.append(_note(origin, old))
    return '.'.join([*NOW[old], *rest]) + '=' + assignment.partition('=')[2]


def _note(origin: str, old: str) -> str:
    return f'{origin}: {old}: is called {_shown(old)} now; the old key will be refused by the next version'


def _shown(old: str) -> str:
    return '.'.join(NOW[old])
