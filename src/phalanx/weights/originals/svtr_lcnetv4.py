"""The layers of the exported file of PP-OCRv6 small's recogniser."""

from __future__ import annotations

from phalanx.families.recognition.models.svtr_lcnetv4 import SVTRLCNetV4


def in_order(model: SVTRLCNetV4) -> list[str]:
    """The layers of `model` that have weights in the file, in its order, which is ours.

    Norms of the backbone are parts of its convolutions there; those of the neck are not.
    """
    layers = [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]
    kept = [name for name in layers if not (name.startswith('backbone.') and name.endswith('.norm'))]
    return [name for name in kept if not name.startswith('nrtr.')]
