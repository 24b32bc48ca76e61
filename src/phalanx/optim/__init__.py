"""What moves the weights: the optimizers and learning-rate schedules that a recipe can name."""

from phalanx.optim.optimizers import adam, adamw, sgd
from phalanx.optim.schedule import constant, cosine, piecewise, polynomial, step

OPTIMIZERS = {'sgd': sgd, 'adam': adam, 'adamw': adamw}

SCHEDULES = {'constant': constant, 'polynomial': polynomial, 'cosine': cosine, 'step': step, 'piecewise': piecewise}
