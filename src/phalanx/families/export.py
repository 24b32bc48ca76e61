"""Description of an exported network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn


def describe_transform(part: object) -> dict[str, Any]:
    """Return name and options of a transform, for an `Export`."""
    options = {name: value for name, value in vars(part).items() if name not in ('start_epoch', 'stop_epoch')}
    return {'name': type(part).__name__, **options}


class NetworkWithDecoding(nn.Module):
    """Export wrapper: network followed by the decoding `read` of its outputs. Normalised images [B, 3, H, W] -> tensors."""

    def __init__(self, network: nn.Module, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.network, self.read = network, read

    def forward(self, images: Tensor) -> Any:
        return self.read(self.network(images))


class GraphPart(NamedTuple):
    """ONNX post-processing without torch operations. The file then takes one image at a time."""

    add: Callable[[Any], Any]  # ONNX model with the outputs of the network -> ONNX model with `outputs`
    outputs: Mapping[str, str]  # name -> shape and meaning


@dataclass(frozen=True)
class Export:
    """Exported network and the information needed to run it."""

    network: nn.Module  # prepared images [B, 3, H, W] -> one tensor per output, in the order of `outputs`
    outputs: Mapping[str, str]  # name -> shape and meaning
    preparation: Mapping[str, Any]  # conversion of an image to the input of the network
    reading: Mapping[str, Any]  # conversion of outputs to results: class names, characters, thresholds
    in_graph: GraphPart | None = None  # post-processing behind the network in the file
    dynamic: Mapping[int, int] = field(default_factory=dict)  # variable dimensions -> the number that they must be multiples of
    is_set: bool = False  # axis 1 of all outputs has no order, and rounding may change it: queries of a detector
    is_rounded: bool = False  # some rows of axis 1 depend on numbers that the network rounds, so their last bit decides
