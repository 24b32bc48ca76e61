"""Interface between trainer and families: a Task owns meaning, the trainer owns mechanics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from phalanx.data.batch import ImageBatch
from phalanx.data.image import AnImage, load_pixels
from phalanx.data.samples import Dataset, Image, Split
from phalanx.families.export import Export
from phalanx.families.figures import Figure, Grade
from phalanx.families.writing import Writers
from phalanx.parallel.step import WholeStep

if TYPE_CHECKING:
    from phalanx.data.bands import Bands

FEATURES = '...'  # stands for the features before the named rows in `Task.labels`
T_co = TypeVar('T_co', covariant=True)  # annotation of one image


class Term(NamedTuple):
    """Named part of a loss as sum and weight, so that its mean does not depend on the split into ranks and micro-batches."""

    total: Tensor  # [] sum over this batch, coefficient included, to be back-propagated
    weight: Tensor  # [] number of summed pixels, boxes, words, ... of this batch; no gradient
    least: float = 0.0  # lower bound of the sum of weights

    def mean(self) -> Tensor:
        """Value of the term for a step of this one batch, differentiable; 0 for weight 0."""
        weight = self.weight.double().clamp(min=self.least)
        return self.total * torch.where(weight == 0, 0, 1 / weight).to(self.total.dtype)


Loss = Mapping[str, Term]  # the loss of a step is the sum over names of (global sum of totals) / (global sum of weights)


class Labelled(Protocol[T_co]):
    """Fields of a batch that metrics read; the batches of all families have them."""

    @property
    def indices(self) -> Sequence[int]:
        """Number of each sample in its data set, for metrics that keep images apart."""

    @property
    def truths(self) -> Sequence[T_co]:
        """Annotation of each image: `Objects`, `Texts`, a label map, ... in pixels of the image as it was read."""


class Metric(Protocol):
    """Counts over the samples of a rank. All ranks call `gather` once; afterwards only the main rank computes results.

    A metric of a plugin inherits what it does not define: no ties broken, no table, no figures.
    """

    names: ClassVar[tuple[str, ...]]  # numbers that can select the best checkpoint, the default first; larger is better
    tie_breakers: ClassVar[tuple[str, ...]] = ()  # select among equal checkpoints, in order; larger is better

    @property
    def worst(self) -> str:
        """Title of the samples of the lowest grades."""
        return 'Worst samples'

    def update(self, prediction: Any, batch: Any) -> Sequence[Grade | None] | None:
        """Count a batch; return the grade of each sample, None where the prediction is right, or None for a metric without."""

    def gather(self) -> None:
        """Gather the counts of all ranks on the main one. Each sample counts exactly once."""

    def compute(self) -> dict[str, float]: ...
    def table(self) -> list[dict[str, str | float]]:
        """One row per class (or other subset), for the report; may be empty."""
        return []

    def figures(self) -> Sequence[Figure]:
        """Figures for the report; may be empty."""
        return []


class Task(ABC):
    """Meaning of a training: samples, network, losses, metric. Holds settings only; picklable; independent of ranks.

    Methods with a body suit most families.
    """

    main_metric: str  # metric that selects the best checkpoint; larger is better
    tie_breakers: tuple[str, ...]  # metrics that select among equal checkpoints, in order; larger is better

    @abstractmethod
    def resolved_names(self) -> Mapping[str, Sequence[str]]:
        """Values that the recipe leaves to files of the data set, such as class names, by key.

        A run folder keeps them in its recipe, so that it can predict without those files.
        """

    def labels(self, names: Sequence[str] | None = None) -> Sequence[Sequence[str]]:
        """Meaning of the rows of the heads of the network, in order, one list per kind of head.

        A list that begins with FEATURES is of the inputs of a decoder: any number of features, then the last token.
        `names`: of the classes or characters of other weights of this family; without them, those of the recipe.
        """
        return []

    @abstractmethod
    def model(self) -> nn.Module: ...
    @abstractmethod
    def dataset(self, split: Split) -> Dataset[Any]: ...
    @abstractmethod
    def for_validation_loss(self, samples: Dataset[Any]) -> Self:
        """Copy of this task that trains on the evaluation `samples`, with the transforms of training."""

    def notes(self, epochs: float) -> Sequence[str]:
        """Warnings on a training of `epochs`, such as stages that it ends before."""
        return ()

    @abstractmethod
    def collate(self, samples: Sequence[Any]) -> ImageBatch: ...
    @abstractmethod
    def network_input(self, batch: Any) -> Tensor:
        """Normalised images [B, 3, H, W] of `batch`, the input of the network."""

    @property
    @abstractmethod
    def has_fixed_size(self) -> bool:
        """True if all training images reach the network in one size."""

    # A training step: align, forward pass, loss.
    def align(self, batch: Any, whole: WholeStep) -> Any:
        """Return `batch` with sizes and lengths that are equal on all ranks, by collectives of `whole`."""
        return batch

    def outputs(self, model: nn.Module, batch: Any) -> Any:
        """Forward pass of training, the input of `loss`."""
        return model(self.network_input(batch))

    @abstractmethod
    def loss(self, outputs: Any, batch: Any, whole: WholeStep) -> Loss:
        """Terms of the loss of `batch`; `whole` provides quantities of the whole step, such as the threshold of hard pixels."""

    @abstractmethod
    def weights(self, batch: Any) -> Mapping[str, Tensor] | None:
        """Weights [] of the terms, in their order, if targets alone determine them; None if outputs do."""

    @property
    def sees_whole_step(self) -> bool:
        """True if the loss of a sample depends on the outputs for other samples of the step, beyond a common weight."""
        return False

    @abstractmethod
    def begin_prediction(self, model: nn.Module, batch: Any) -> Callable[[], Any]:
        """Enqueue the forward pass, and the copy to the host of what post-processing there needs (`AsyncCopy`).

        The returned function waits for that copy only, and returns what `predict` does.
        """

    def predict(self, model: nn.Module, batch: Any) -> Any:
        """Forward pass and post-processing, the input of `metric` and `results`."""
        return self.begin_prediction(model, batch)()

    def predictions(self, outputs: Sequence[Any]) -> Any:
        """Input of `metric` from predictions of an exported model for single images (`phalanx.runtime.Model.predictions`)."""
        return list(outputs)

    @abstractmethod
    def metric(self) -> Metric: ...

    # Results for users, and for `phalanx predict`.
    @property
    def bands(self) -> Bands | None:
        """Bands of the images; None for RGB."""
        return None

    def load_image(self, image: AnImage) -> Image:
        """Load an image as the data set has them, from an array or a file. Raises ValueError and SampleError."""
        return self.bands.load(image) if self.bands else load_pixels(image)

    @abstractmethod
    def request(self, image: Image) -> Any:
        """Prepare an image without annotation as in evaluation."""

    def results(self, prediction: Any, batch: Any) -> list[Any]:
        """Split a prediction into the result of each image of the batch, at the size of its image."""
        return prediction  # type: ignore[no-any-return]  # already a list of results in most families

    @abstractmethod
    def picture(self, sample: Any, result: Any) -> list[tuple[str, Image]]:
        """Captioned pictures of one evaluation sample for the report: image, truth, prediction."""

    @property
    @abstractmethod
    def writers(self) -> Writers:
        """Functions that draw and write the result of one image."""

    # For `phalanx export`.
    @abstractmethod
    def export(self, model: nn.Module, *, post_processing: bool = False) -> Export:
        """Network for deployment, without parts that only training needs; shares its weights with `model`.

        `model`: the student of a distillation. `post_processing`: include the post-processing that a graph supports; raises
        ValueError if it supports none.
        """
