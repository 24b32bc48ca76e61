"""What moves the weights: the optimizers and learning-rate schedules that a recipe can name."""

from collections.abc import Callable

from torch.optim import Optimizer

from phalanx.optim.layerwise import Lamb, Lars
from phalanx.optim.optimizers import adam, adamw, sgd
from phalanx.optim.schedule import Schedule, constant, cosine, piecewise, polynomial, step

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {'sgd': sgd, 'adam': adam, 'adamw': adamw, 'lars': Lars, 'lamb': Lamb}
REFUSING = (Lars, Lamb)  # those that do not take every set of groups

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    'constant': constant,
    'polynomial': polynomial,
    'cosine': cosine,
    'step': step,
    'piecewise': piecewise,
}
