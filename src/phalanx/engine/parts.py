"""The data sets and the network of a job: checks before a start build them, and a run in the same process trains with them."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.data.samples import Dataset
from phalanx.engine.initial import load_initial
from phalanx.engine.schema import Recipe
from phalanx.families.task import Task
from phalanx.weights.reading import LoadedWeights


class Parts:
    """Each part is built when it is first asked for, and once. Raises what building it raises."""

    def __init__(self, recipe: Recipe, task: Task) -> None:
        self.recipe, self.task = recipe, task

    @cached_property
    def train(self) -> Dataset[Any]:
        """The training samples."""
        return self.task.dataset('train')

    @cached_property
    def evaluation(self) -> Dataset[Any]:
        """The evaluation samples."""
        return self.task.dataset('eval')

    @cached_property
    def _network(self) -> tuple[nn.Module, Tensor]:
        """The network as the seed draws it, the same on every rank, and the state of torch's generator after that."""
        torch.manual_seed(self.recipe.train.seed)
        return self.task.model(), torch.get_rng_state()

    @property
    def network(self) -> nn.Module:
        """The network, with the weights that the recipe starts from once `initial` was asked for."""
        return self._network[0]

    @cached_property
    def initial(self) -> list[LoadedWeights]:
        """The weights that the recipe starts from, when it names any: loaded into `network`. Raises CheckpointError."""
        return load_initial(self.network, self.recipe, self.task)

    def begin(self) -> nn.Module:
        """The network for a run, with torch's generator as it was when the network was built."""
        network, random_state = self._network
        torch.set_rng_state(random_state)
        return network
