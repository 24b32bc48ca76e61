"""Files of distillations hold several networks, each under its name: `Student`, `Teacher` in PaddleOCR."""

from torch import nn

from phalanx.families.distillation import Distilled
from phalanx.weights.matching import Weights

STUDENTS = ('Student', 'networks.student')  # the network for later use, as PaddleOCR names it and as we do


def networks_in(arrays: Weights, model: nn.Module) -> list[tuple[nn.Module, Weights]]:
    """The networks that the arrays of a file are for, each with its own: all of a distillation, or `model`.

    A model that is not a distillation takes the student of one. Raises ValueError when a network is not there.
    """
    if arrays.keys() & model.state_dict().keys():
        return [(model, arrays)]
    if isinstance(model, Distilled):
        return [(network, of_network(arrays, name.capitalize())) for name, network in model.networks.items()]
    for student in STUDENTS:
        if any(name.startswith(f'{student}.') for name in arrays):
            return [(model, of_network(arrays, student))]
    return [(model, arrays)]


def of_network(arrays: Weights, name: str) -> Weights:
    """The arrays of the network `name`, by the names they have without the others.

    Raises ValueError, with the names there are, when none is of that network.
    """
    prefix = f'{name}.'
    found = {array.removeprefix(prefix): values for array, values in arrays.items() if array.startswith(prefix)}
    if not found:
        there = ', '.join(sorted({array.partition('.')[0] for array in arrays}))
        raise ValueError(f'the weights hold no network {name!r}; their names start with {there}')
    return found
