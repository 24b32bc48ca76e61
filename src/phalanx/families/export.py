"""A trained network as `phalanx export` writes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn


def describe_transform(part: object) -> dict[str, Any]:
    """A transform by its name, and the options that it was built with, for an `Export`."""
    return {'name': type(part).__name__, **vars(part)}


class NetworkWithDecoding(nn.Module):
    """A network as others run it: normalised images [B, 3, H, W] -> what `read` makes of its outputs."""

    def __init__(self, network: nn.Module, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.network, self.read = network, read

    def forward(self, images: Tensor) -> Any:
        return self.read(self.network(images))


class GraphPart(NamedTuple):
    """Post-processing that torch has no operations for. The file then takes one image at a time."""

    add: Callable[[Any], Any]  # an ONNX model with the outputs of the network -> one with those below
    outputs: Mapping[str, str]  # name -> shape and meaning


@dataclass(frozen=True)
class Export:
    """A trained network as `phalanx export` writes it, and what those who run it must know."""

    network: nn.Module  # prepared images [B, 3, H, W] -> a tensor for each of `outputs`, in their order
    outputs: Mapping[str, str]  # name -> shape and meaning
    preparation: Mapping[str, Any]  # how an image becomes what the network takes
    reading: Mapping[str, Any]  # how the outputs become a result: class names, characters, thresholds
    in_graph: GraphPart | None = None  # what is put behind the network in the file
    dynamic: Mapping[int, int] = field(default_factory=dict)  # dimensions that images differ in -> what they are multiples of
