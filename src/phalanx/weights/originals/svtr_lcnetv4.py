"""The layers of the exported file of PP-OCRv6 small's recogniser."""

from phalanx.families.recognition.models.svtr_lcnetv4 import SVTRLCNetV4
from phalanx.weights.originals import svtr_lcnetv3


def in_order(model: SVTRLCNetV4) -> list[str]:
    """The layers of `model` that have weights in the file, in its order, which is ours.

    Norms of the backbone are parts of its convolutions there; those of the neck are not.
    """
    layers = svtr_lcnetv3.in_order(model)
    return [name for name in layers if not (name.startswith('backbone.') and name.endswith('.norm'))]
