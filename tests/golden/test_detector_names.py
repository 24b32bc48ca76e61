"""Names and shapes of the tensors of detectors with queries, for all published sizes.

Expected digests were produced by building the networks of the authors (D-FINE; DEIMv2; RT-DETR, both PyTorch versions
and its PaddleDetection), and by writing files with `save_pretrained` of transformers 5.24; each is over the sorted lines
`name [shape]` of the parameters and running statistics.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from phalanx.families.detection.models import MODELS
from phalanx.weights.matching import COUNTER, Naming
from phalanx.weights.reading import namings

FACTS = json.loads((Path(__file__).parent / 'data' / 'detector_names.json').read_text())
LARGE = re.compile(r'm$|x$|34|101|_l$')


def digest(naming: Naming) -> str:
    lines = sorted(f'{name} {list(slot.tensor.shape)}' for name, slot in naming.slots.items() if not name.endswith(COUNTER))
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()


@pytest.mark.parametrize('key', [pytest.param(key, marks=pytest.mark.long if LARGE.search(key) else ()) for key in FACTS])
def test_each_size_has_the_names_and_shapes_of_published_files(key: str) -> None:
    network, size = key.split()
    with torch.device('meta'):
        model = MODELS[network](80, size=size)
    digests = {digest(naming) for naming in namings(model)}
    for source, facts in FACTS[key].items():
        assert facts['sha256'] in digests, source
