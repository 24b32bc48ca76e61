"""Data sets and network of a job: built by the checks before a start, reused by a run in the same process."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.data.samples import Dataset
from phalanx.engine.initial import load_initial
from phalanx.engine.schema import Recipe
from phalanx.families.task import Task
from phalanx.system.shared import Shared
from phalanx.weights.reading import LoadedWeights


class Parts:
    """Parts of a job, each built once on first access. Raises as building it does."""

    def __init__(self, recipe: Recipe, task: Task) -> None:
        self.recipe, self.task = recipe, task
        self.shared: Shared | None = None  # the data sets, if several processes of this node have them

    @cached_property
    def train(self) -> Dataset[Any]:
        """Training samples."""
        return self.task.dataset('train')

    @cached_property
    def evaluation(self) -> Dataset[Any]:
        """Evaluation samples."""
        return self.task.dataset('eval')

    @cached_property
    def _network(self) -> tuple[nn.Module, Tensor]:
        """Network with seeded random weights, equal on all ranks, and the state of torch's generator after that."""
        torch.manual_seed(self.recipe.train.seed)
        return self.task.model(), torch.get_rng_state()

    @property
    def network(self) -> nn.Module:
        """Network; with its initial weights once `initial` was accessed."""
        return self._network[0]

    @cached_property
    def initial(self) -> list[LoadedWeights]:
        """Load the initial weights of the recipe, if any, into `network`. Raises CheckpointError."""
        return load_initial(self.network, self.recipe, self.task)

    def begin(self) -> nn.Module:
        """Return the network for a run, with torch's generator as it was when the network was built."""
        network, random_state = self._network
        # Everything random then draws the same numbers, whether checks or the run built the network.
        torch.set_rng_state(random_state)
        return network
