"""The seam: all that the trainer knows of a family. A Task owns meaning, the trainer owns mechanics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from phalanx.data.batch import ImageBatch
from phalanx.data.samples import Dataset, Image, Split
from phalanx.families.export import Export
from phalanx.families.figures import Figure, Grade
from phalanx.families.writing import Writers
from phalanx.parallel.step import WholeStep

T_co = TypeVar('T_co', covariant=True)  # what is true of one image


class Term(NamedTuple):
    """One named part of a loss, as a sum and how much was summed, so that it means the same however a batch is cut."""

    total: Tensor  # [] sum over this batch, coefficient included, to be back-propagated
    weight: Tensor  # [] how much of this batch was summed: pixels, boxes, words; no gradient
    least: float = 0.0  # lower bound of the sum of weights

    def mean(self) -> Tensor:
        """The term of a step that is this one batch, differentiable."""
        weight = self.weight.double().clamp(min=self.least)
        return self.total * torch.where(weight == 0, 0, 1 / weight).to(self.total.dtype)


Loss = Mapping[str, Term]  # the loss of a step is the sum over names of (global sum of totals) / (global sum of weights)


class Labelled(Protocol[T_co]):
    """The part of a batch that metrics read; the batches of all families have it."""

    @property
    def indices(self) -> Sequence[int]:
        """The number of each sample in its data set, for metrics that keep images apart."""

    @property
    def truths(self) -> Sequence[T_co]:
        """The annotation of each image: `Objects`, `Texts`, a label map, ... in pixels of the image as it was read."""


class Metric(Protocol):
    """Counts what a rank has seen. All ranks call `gather` once; after it the main rank alone is asked for results."""

    names: ClassVar[tuple[str, ...]]  # of the numbers that can pick the best checkpoint, the usual one first; larger is better
    tie_breakers: ClassVar[tuple[str, ...]]  # pick between checkpoints equal in that one, in order; larger is better

    @property
    def worst(self) -> str:
        """What the samples of the lowest grades are, for a title."""

    def update(self, prediction: Any, batch: Any) -> Sequence[Grade | None]:
        """Counts a batch; the grade of each of its samples, None where all is right."""

    def gather(self) -> None:
        """Brings the counts of all ranks to the main one, so that each sample counts exactly once."""

    def compute(self) -> dict[str, float]: ...
    def table(self) -> list[dict[str, str | float]]:
        """One row a class (or whatever the metric is split by), for the report; may be empty."""

    def figures(self) -> Sequence[Figure]:
        """What the report draws of it; may be empty."""


class Task(ABC):
    """The meaning of a training: samples, network, losses, metric. Holds settings only; picklable; knows no rank.

    Methods with a body here suit most families.
    """

    main_metric: str  # the metric that picks the best checkpoint; larger is better
    tie_breakers: tuple[str, ...]  # metrics that pick between checkpoints equal in that one, in order; larger is better

    @abstractmethod
    def resolved_names(self) -> Mapping[str, Sequence[str]]:
        """Keys of the recipe that leave something to files of the data set (the names of classes, say), and what these say.

        A run folder has it in its recipe, so that it can predict where those files are not.
        """

    def labels(self, names: Sequence[str] | None = None) -> Sequence[Sequence[str]]:
        """What the rows of the network's heads stand for, in their order, one list a kind of head.

        `names`: of the classes or characters of other weights of this family; without them, those of the recipe.
        """
        return []

    @abstractmethod
    def model(self) -> nn.Module: ...
    @abstractmethod
    def dataset(self, split: Split) -> Dataset[Any]: ...
    @abstractmethod
    def for_validation_loss(self) -> Self:
        """This task, but that it trains with the samples to evaluate with, transformed like those to train with."""

    @abstractmethod
    def collate(self, samples: Sequence[Any]) -> ImageBatch: ...
    @abstractmethod
    def network_input(self, batch: Any) -> Tensor:
        """What the network takes of `batch`, [B, 3, H, W], normalised."""

    @property
    @abstractmethod
    def has_fixed_size(self) -> bool:
        """Whether all training images reach the network in one size."""

    # A training step: align, forward pass, loss.
    def align(self, batch: Any, whole: WholeStep) -> Any:
        """`batch` with what must not differ between ranks (sizes, lengths) made equal, by asking `whole`."""
        return batch

    def outputs(self, model: nn.Module, batch: Any) -> Any:
        """The forward pass of training: what `loss` takes."""
        return model(self.network_input(batch))

    @abstractmethod
    def loss(self, outputs: Any, batch: Any, whole: WholeStep) -> Loss:
        """The terms of the loss of `batch`; what belongs to the whole step (a hardest-pixel threshold, say) it asks `whole`."""

    @abstractmethod
    def weights(self, batch: Any) -> Mapping[str, Tensor] | None:
        """The weights [] of the terms, in their order, where targets alone determine them; None where only outputs do."""

    @property
    def sees_whole_step(self) -> bool:
        """Whether the loss of a sample depends on the outputs for all others of the step, not only by a common weight."""
        return False

    @abstractmethod
    def predict(self, model: nn.Module, batch: Any) -> Any:
        """Forward and post-processing: what `metric` and `results` take."""

    def predictions(self, made: Sequence[Any]) -> Any:
        """What `metric` takes, of what an exported model predicts for single images (`phalanx.runtime.Model.predictions`)."""
        return list(made)

    @abstractmethod
    def metric(self) -> Metric: ...

    # What a person sees, and what `phalanx predict` writes.
    @abstractmethod
    def request(self, image: Image) -> Any:
        """A bare image, prepared as in evaluation."""

    def results(self, prediction: Any, batch: Any) -> list[Any]:
        """A prediction taken apart: the finished result of each image of the batch, at the size of its image."""
        return prediction  # type: ignore[no-any-return]  # a list of them in most families

    @abstractmethod
    def picture(self, sample: Any, result: Any) -> list[tuple[str, Image]]:
        """Captioned pictures of one evaluation sample for the report: image, truth, prediction."""

    @property
    @abstractmethod
    def writers(self) -> Writers:
        """How the result of one image is drawn and written."""

    # What `phalanx export` writes.
    @abstractmethod
    def export(self, model: nn.Module, *, post_processing: bool = False) -> Export:
        """The network for use elsewhere, without what only training needs; it shares its weights with `model`.

        `model`: of a distillation the student. `post_processing`: with as much of what makes results of its outputs as a graph
        can do. Raises ValueError when it can do nothing.
        """
