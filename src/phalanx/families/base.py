"""Base class of the Tasks of all families: common recipe keys, and distillation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from phalanx.config.options import check_std
from phalanx.data.batch import normalise_images
from phalanx.data.samples import Split
from phalanx.families.contracts import METRIC, require
from phalanx.families.distillation import DISTILLATIONS, STUDENT, DistillationModel, NetworkLoss
from phalanx.families.losses import merge_terms, weight_losses
from phalanx.families.sizing import sizing_of
from phalanx.families.task import Loss, Metric, Task
from phalanx.nn.layers import set_input_channels
from phalanx.parallel.step import WholeStep
from phalanx.runtime.prepare import RESIZING

if TYPE_CHECKING:
    from phalanx.data.bands import Bands

Colours = tuple[float, ...]  # one value per band; three of RGB


@dataclass(frozen=True, kw_only=True)
class FamilyKeys:  # families redeclare the keys whose parts come from their own catalogs
    """Keys of all families.

    `loss` lists the losses, weighted by `loss_coefficients` (default: 1 each). `metric` computes the numbers of evaluations;
    `main_metric` selects the best checkpoint (default: the first of its `names`). `mean` and `std` normalise
    pixel values between 0 and 1; images of other bands (`data.bands`) need one value per band.

    Distillation: `model` is the student, `networks` names further networks that see the same batches, `between` lists losses
    between networks; each network also learns from `loss`, unless it is in `frozen`; see also `train.init_networks`.
    """

    model: partial[nn.Module]
    data: partial[Any]
    loss: tuple[partial[Any], ...]
    loss_coefficients: tuple[float, ...] = ()
    metric: partial[Any]
    main_metric: str | None = None
    transforms: tuple[partial[Any], ...] = ()
    eval_transforms: tuple[partial[Any], ...] = ()
    mean: Colours
    std: Colours
    networks: dict[str, partial[nn.Module]] | None = None
    between: tuple[Annotated[partial[NetworkLoss], DISTILLATIONS], ...] = ()
    frozen: tuple[str, ...] = ()


class Family(Task):
    """Base class of the Tasks of all families; each is built from its `Keys`, the keys of a recipe."""

    Keys: ClassVar[type[FamilyKeys]]
    channels: Literal['RGB', 'BGR'] = 'RGB'  # channel order of the network's input, that of the published weights
    training_source: Any = None  # Source of the training samples; None: that of the data set
    data_needs: ClassVar[tuple[str, ...]] = ('split',)
    network_needs: ClassVar[tuple[str, ...]] = ()
    loss_needs: ClassVar[tuple[str, ...]] = ('weights',)

    def __init__(self, keys: FamilyKeys) -> None:
        """Build the parts. Raises ValueError for their invalid options."""
        check_std(keys.std)
        metric: type[Metric] = keys.metric.func  # type: ignore[assignment]
        require(metric, 'metric', METRIC)
        names = metric.names
        if keys.main_metric is not None and keys.main_metric not in names:
            raise ValueError(f'main_metric: {keys.main_metric!r} is not one of {", ".join(names)}, the values of this metric')
        # Losses and weight files distinguish networks by name.
        if STUDENT in (keys.networks or {}):
            raise ValueError(f'networks: {STUDENT!r} is the name of `model`; rename the other network')
        if bool(keys.networks) != self.distils(keys):
            raise ValueError('distillation needs both `networks` and losses `between` them')
        self.network, self.make_data = keys.model, keys.data
        self.losses = weight_losses(keys.loss, keys.loss_coefficients, self.loss_needs)
        self.make_metric, self.main_metric = keys.metric, keys.main_metric or names[0]
        self.tie_breakers = metric.tie_breakers
        self.transforms: dict[Split, tuple[Any, ...]] = {
            'train': tuple(transform() for transform in keys.transforms),
            'eval': tuple(transform() for transform in keys.eval_transforms),
        }
        self.mean, self.std = keys.mean, keys.std
        self.networks, self.between, self.frozen = keys.networks or {}, tuple(loss() for loss in keys.between), keys.frozen
        for name in {name for loss in self.between for name in loss.between} - {STUDENT, *self.networks}:
            raise ValueError(f'between: there is no network {name!r}; there are {", ".join((STUDENT, *self.networks))}')

    @staticmethod
    def distils(keys: Any) -> bool:
        """True if networks of the recipe learn from one another."""
        return bool(keys.between)

    def data(self) -> Any:
        """Data set of the recipe. Raises ValueError as its builder does, and if it lacks what the family needs."""
        data = self.make_data()
        require(data, 'data', self.data_needs)
        return data

    def resolved_names(self) -> Mapping[str, Sequence[str]]:
        """Class names, if the data set may read them from a file named by `classes`."""
        return {'data.classes': self.data().class_names} if 'classes' in signature(self.make_data.func).parameters else {}

    def build_network(self, size: int) -> nn.Module:
        """Network for `size` classes (characters, tokens), or all networks of a distillation. Raises ValueError."""
        # All networks of a distillation have the same number of classes.
        self.check_bands()
        variants = {STUDENT: self.network, **self.networks}
        networks = {name: variant(size) for name, variant in variants.items()}
        for name, network in networks.items():
            require(network, 'model', ('parameters', *self.network_needs))
            self.check_fits(network, f'{name} network' if self.networks else 'network')
            if self.bands:
                set_input_channels(network, self.bands.count)
        return self.build_distillation(networks) if self.networks else networks[STUDENT]

    def build_distillation(self, networks: Mapping[str, nn.Module]) -> DistillationModel:
        return DistillationModel(networks, frozen=self.frozen)

    @cached_property
    def bands(self) -> Bands | None:
        """Bands of the images; None for RGB."""
        return getattr(self.data(), 'bands', None)

    def check_bands(self) -> None:
        """Raise ValueError if `mean` and `std` or a transform are for images of other bands."""
        count = self.bands.count if self.bands else 3
        colours = {'mean': self.mean, 'std': self.std}
        parts = [transform for split in self.transforms.values() for transform in split]
        for name, values in (*colours.items(), *(('fill', part.fill) for part in parts if hasattr(part, 'fill'))):
            if len(values) != count:
                raise ValueError(f'{name}: gives {len(values)} values for images of {count} bands; give one per band')
        for part in parts:
            if self.bands and (reason := getattr(part, 'only_rgb', '')):
                raise ValueError(f'transforms: {type(part).__name__} {reason}')

    def check_fits(self, network: Any, role: str) -> None:
        """Raise ValueError if the network does not fit the rest of the recipe; `role` names it in the message."""

    def for_validation_loss(self, samples: Any) -> Self:
        other = copy.copy(self)
        other.training_source = samples.source
        return other

    def source(self, split: Split) -> Any:
        """Samples of a split. Raises FileNotFoundError if files are missing."""
        if split == 'train' and self.training_source is not None:
            return self.training_source
        source = self.data().split(split)
        require(source, 'data', ('__len__', 'check_files', 'name', 'read'))
        source.check_files()
        return source

    def network_input(self, batch: Any) -> Tensor:
        return normalise_images(batch.images if self.channels == 'RGB' else batch.images.flip(1), self.mean, self.std)

    @property
    def pixels(self) -> dict[str, Any]:
        """Conversion of pixels to numbers, for the `preparation` of an Export."""
        pixels = {'resizing': RESIZING, 'channels': self.channels, 'mean': self.mean, 'std': self.std}
        if self.bands is None:
            return pixels
        bands = {'count': self.bands.count, 'bits': self.bands.bits}
        values = f'(value / {self.bands.largest} - mean) / std for each band'
        return {**pixels, 'values': values, 'channels': 'as stored', 'bands': bands}

    @property
    def has_fixed_size(self) -> bool:
        return sizing_of(self.transforms['train']) == 'one'

    def loss(self, outputs: Any, batch: Any, whole: WholeStep) -> Loss:
        # Without a distillation, the loss of the only network.
        if not self.networks:
            return self.supervised_loss(outputs, batch, whole)
        # Each network that is not frozen learns from the annotations; its terms get its name as a suffix.
        own = {network: self.supervised_loss(outputs[network], batch, whole) for network in self.trained_networks}
        from_truth = [{f'{name}_{network}': term for name, term in terms.items()} for network, terms in own.items()]
        return merge_terms([*from_truth, *(between(outputs) for between in self.between)])

    def supervised_loss(self, outputs: Any, batch: Any, whole: WholeStep) -> Loss:
        """Loss of one network against the annotations."""
        raise NotImplementedError

    def weights(self, batch: Any) -> Mapping[str, Tensor] | None:
        own = self.supervised_weights(batch)
        if not self.networks or own is None:
            return own
        # Losses between networks are means over samples.
        samples = torch.full((), float(len(batch)), dtype=torch.float64, device=batch.images.device)
        of_networks = [{f'{term}_{name}': weight for term, weight in own.items()} for name in self.trained_networks]
        return merge_terms([*of_networks, *({between.name: samples} for between in self.between)])

    def supervised_weights(self, batch: Any) -> Mapping[str, Tensor] | None:
        """Weights of `supervised_loss`, if targets alone determine them; else None."""
        raise NotImplementedError

    @property
    def trained_networks(self) -> list[str]:
        """Names of the networks that learn from the annotations."""
        return [name for name in (STUDENT, *self.networks) if name not in self.frozen]


def check_part(part: Callable[[], Any]) -> None:
    """Build a part of a recipe, so that errors in its options are reported with its place. Raises ValueError."""
    part()
