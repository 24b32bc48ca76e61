"""Comparison of the weights of a file with a network, tensor by tensor, by name and shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phalanx.families.task import FEATURES
from phalanx.nn.layers import inflate

Weights = Mapping[str, npt.NDArray[Any] | Tensor]  # as stored in a file

COUNTER = '.num_batches_tracked'  # the step counter of a batch norm, which only torch has
SHOWN = 5  # maximum number of names in a message


@dataclass(frozen=True)
class Slot:
    """Tensor of a network that can be filled from a file."""

    ours: str  # name of the tensor in the network
    tensor: Tensor  # a view in the layout of the file: filling the view fills the network


@dataclass(frozen=True)
class Naming:
    """Tensors of a network (or of a part of it) under their names in one kind of file."""

    slots: Mapping[str, Slot]  # by name in the file
    is_redundant: Callable[[str, Weights], bool] = lambda name, weights: False  # True for a tensor that adds no information

    def of_part(self, part: str) -> Naming:
        """Restrict to the tensors of one part of the network."""
        return replace(self, slots={name: slot for name, slot in self.slots.items() if slot.ours.startswith(f'{part}.')})

    def alone(self, part: str) -> Naming:
        """Restrict to one part, for a file of this part alone, whose names do not begin with it."""
        # For example a file of a classifier's backbone, without the prefix `backbone.`.
        inside = self.of_part(part).slots
        return replace(self, slots={name.removeprefix(f'{part}.'): slot for name, slot in inside.items()})


@dataclass(frozen=True)
class SharedRows:
    """Rows of a head that network and file share."""

    dim: int  # along which the rows lie
    ours: list[int]
    theirs: list[int]


@dataclass(frozen=True)
class RowNames:
    """Names of the rows of heads, classes or characters with the special rows of a head, here and in a file.

    One list of names per kind of head, in the same order on both sides.
    """

    ours: Sequence[Sequence[str]]
    theirs: Sequence[Sequence[str]]

    def match_rows(self, shape: Sequence[int], file_shape: Sequence[int]) -> SharedRows | None:
        """Match rows by name between tensors of the shapes `shape` and `file_shape`, which differ only in their number.

        Names that begin with FEATURES stand for the rows after those of features, which are the same on both sides.
        """
        # Heads differ in one dimension only: the number of classes or characters.
        differing = [dim for dim, sizes in enumerate(zip(shape, file_shape, strict=False)) if sizes[0] != sizes[1]]
        if len(shape) != len(file_shape) or len(differing) != 1:
            return None
        (dim,) = differing
        # The kind of head is recognised by its numbers of rows on both sides.
        for ours, theirs in zip(self.ours, self.theirs, strict=True):
            is_after = [*ours[:1]] == [*theirs[:1]] == [FEATURES]
            ours, theirs = ours[is_after:], theirs[is_after:]
            before = shape[dim] - len(ours)
            if before == file_shape[dim] - len(theirs) and (before > 0 if is_after else before == 0):
                places = {name: row for row, name in enumerate(theirs, before)}
                shared = [(row, places[name]) for row, name in enumerate(ours, before) if name in places]
                same = [(row, row) for row in range(before)]
                return SharedRows(dim, *map(list, zip(*same, *shared, strict=True))) if shared else None
        return None

    def notes(self) -> list[str]:
        """Warnings about heads with the same number of rows under other names: these are loaded in their order."""
        same_size = [(ours, theirs) for ours, theirs in zip(self.ours, self.theirs, strict=True) if len(ours) == len(theirs)]
        return [
            f'the file has the same number of classes under other names ({shorten(theirs)}): rows are loaded in order'
            for ours, theirs in same_size[:1]
            if tuple(ours) != tuple(theirs)
        ]


@dataclass(frozen=True)
class Fit:
    """Result of comparing the weights of a file with a network. Names are those in the file."""

    naming: Naming
    weights: Weights
    loaded: tuple[str, ...]  # name and shape agree: `fill` loads these
    missing: tuple[str, ...]  # in the network, but not in the file
    misshapen: tuple[str, ...]  # in both, with different shapes
    left_over: tuple[str, ...]  # in the file, but not in the network
    carried: Mapping[str, SharedRows]  # of different shapes, but with shared rows
    inflated: tuple[str, ...]  # convolutions of RGB images in the file, of other bands in the network

    @classmethod
    def of(cls, naming: Naming, weights: Weights, rows: RowNames | None = None) -> Fit:
        common = [name for name in naming.slots if name in weights]
        shapes = {name: (naming.slots[name].tensor.shape, weights[name].shape) for name in common}
        fits = {name: tuple(here) == tuple(theirs) for name, (here, theirs) in shapes.items()}
        # Heads for other classes: their rows of shared classes can be loaded.
        matches = {name: rows.match_rows(*shapes[name]) for name in common if rows and not fits[name]}
        carried = {name: each for name, each in matches.items() if each is not None}
        inflated = tuple(name for name in common if not fits[name] and _is_inflated(*shapes[name]))
        missing = tuple(name for name in naming.slots if name not in weights and not name.endswith(COUNTER))
        return cls(
            naming,
            weights,
            loaded=tuple(name for name in common if fits[name]),
            missing=missing,
            misshapen=tuple(name for name in common if not fits[name] and name not in carried and name not in inflated),
            carried=carried,
            inflated=inflated,
            left_over=tuple(
                name
                for name in weights
                if name not in naming.slots and not name.endswith(COUNTER) and not naming.is_redundant(name, weights)
            ),
        )

    @torch.no_grad()
    def fill(self) -> None:
        """Copy the weights that fit into the network, which keeps its dtype and device."""
        for name in self.loaded:
            self.naming.slots[name].tensor.copy_(_to_tensor(self.weights[name]))
        for name in self.inflated:
            target = self.naming.slots[name].tensor
            target.copy_(inflate(_to_tensor(self.weights[name]), target.shape[1]))
        for name, rows in self.carried.items():
            target = self.naming.slots[name].tensor
            shared = _to_tensor(self.weights[name]).index_select(rows.dim, torch.tensor(rows.theirs))
            target.index_copy_(rows.dim, torch.tensor(rows.ours, device=target.device), shared.to(target))

    @property
    def share(self) -> float:
        """Share of the network's tensors filled from the file, 0 to 1."""
        # Step counters exist only in torch: they say nothing about a fit.
        counted = [name for name in self.naming.slots if not name.endswith(COUNTER)]
        return sum(not name.endswith(COUNTER) for name in (*self.loaded, *self.inflated)) / max(len(counted), 1)

    def problems(self) -> list[str]:
        """Everything that does not fit, one line per tensor."""
        slots = self.naming.slots
        return [
            *(f'missing: {name} {list(slots[name].tensor.shape)}' for name in self.missing),
            *(f'misshapen: {self.shapes(name)}' for name in self.misshapen),
            *(f'left over: {name} {list(self.weights[name].shape)}' for name in self.left_over),
        ]

    def shapes(self, name: str) -> str:
        """Describe a misshapen tensor, with both shapes."""
        return f'{name} is {list(self.weights[name].shape)}, the model has {list(self.naming.slots[name].tensor.shape)}'

    def notes(self) -> list[str]:
        """Warnings about tensors that were not filled, one line per kind."""
        lines = []
        if self.missing:
            lines.append(
                f'{count_tensors(self.missing)} missing and {stay(self.missing)} as initialised: {shorten(self.missing)}'
            )
        if self.inflated:
            lines.append(f'for images of RGB, repeated for the bands of these: {shorten(self.inflated)}')
        # One line per number of shared rows: weight and bias of a head belong together.
        for count in sorted({len(rows.ours) for rows in self.carried.values()}):
            names = [name for name, rows in self.carried.items() if len(rows.ours) == count]
            sizes = [self.naming.slots[name].tensor.shape[self.carried[name].dim] for name in names]
            fresh = ', the others are fresh' if max(sizes) > count else ''
            lines.append(f'{count} rows of shared classes, characters or tokens are loaded{fresh}: {shorten(names)}')
        if self.misshapen:
            shapes = shorten([self.shapes(name) for name in self.misshapen])
            lines.append(
                f'{count_tensors(self.misshapen)} of another shape and {stay(self.misshapen)} as initialised: {shapes}'
            )
        if self.left_over:
            lines.append(
                f'{count_tensors(self.left_over)} left over, without a place in the network: {shorten(self.left_over)}'
            )
        return lines

    def rows(self) -> list[dict[str, str | float]]:
        """Table for the report: the number of tensors loaded, missing and misshapen, per part of the network."""
        # Parts are the top-level modules of the network.
        parts = list(dict.fromkeys(slot.ours.partition('.')[0] for slot in self.naming.slots.values()))

        def count(names: Sequence[str], part: str) -> int:
            ours = [self.naming.slots[name].ours for name in names if not name.endswith(COUNTER)]
            return sum(name.partition('.')[0] == part for name in ours)

        table: list[dict[str, str | float]] = [
            {
                'part': part,
                'loaded': count((*self.loaded, *self.inflated), part),
                'rows by name': count(tuple(self.carried), part),
                'missing, as initialised': count(self.missing, part),
                'misshapen, as initialised': count(self.misshapen, part),
                'left over': 0,
            }
            for part in parts
        ]
        if self.left_over:
            zeros = dict.fromkeys(table[0], 0) if table else {}
            table.append({**zeros, 'part': '(no place here)', 'left over': len(self.left_over)})
        return table


def _is_inflated(shape: Sequence[int], file_shape: Sequence[int]) -> bool:
    """True for a convolution of RGB images in the file that has another number of bands in the network."""
    return len(shape) == 4 and len(file_shape) == 4 and (shape[0], 3, *shape[2:]) == tuple(file_shape)


def _to_tensor(value: npt.NDArray[Any] | Tensor) -> Tensor:
    # Contiguous and writable, as torch requires of arrays.
    return value if isinstance(value, Tensor) else torch.from_numpy(np.require(value, requirements=('C', 'W')))


def count_tensors(names: Sequence[str]) -> str:
    return f'{len(names)} tensors are' if len(names) != 1 else '1 tensor is'


def stay(names: Sequence[str]) -> str:
    return 'stay' if len(names) != 1 else 'stays'


def shorten(names: Sequence[str]) -> str:
    more = f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''
    return ', '.join(names[:SHOWN]) + more
