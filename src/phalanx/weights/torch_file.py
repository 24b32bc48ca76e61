"""Files of torch.save: the tensors in them, or what they hold instead and the cure. No code in them runs."""

import io
import pickle
import re
from typing import Any

import torch

from phalanx.paddle.pdparams import RefusedError
from phalanx.system.errors import first_line
from phalanx.weights.archives import ZIP, check_unpacked_size, zip_names
from phalanx.weights.checkpoint import UNREADABLE
from phalanx.weights.matching import shorten
from phalanx.weights.unwrapping import StoredWeights, find_tensors

ALONE = "torch.save(torch.load(FILE, weights_only=False)['state_dict'], 'weights.pth'), or of a whole network, .state_dict()"
PROGRAMS = {  # by a member that only their files have
    'constants.pkl': ('TorchScript', 'jit.load(FILE).state_dict()'),
    'archive_format': ('torch.export', 'export.load(FILE).state_dict'),
}
# Classes of the settings and logs that training scripts save beside their weights.
RECORDS = re.compile(
    r'argparse\.Namespace$|(pathlib|datetime|collections|typing|numpy|omegaconf|addict|easydict|yacs|mmengine|mmcv)\.|'
    r'(pytorch_|)lightning(_fabric|)\.|(builtins|__builtin__)\.(bool|dict|float|getattr|int|list|object|range|set|slice|str|tuple)$'
)
ULTRALYTICS = ('ultralytics.', 'models.yolo.')  # the second: YOLOv5


class _Record:
    """An object that is not read: it takes the place of a class or function, and keeps nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class _Entries:
    """The place of a class of dicts: its objects are plain ones."""

    def __new__(cls, *_: object) -> Any:
        return {}


def read_torch(data: bytes, key: str | None) -> StoredWeights:
    """Read the tensors of a file of `torch.save`, also in nested entries. Raises RefusedError and ArchiveError."""
    records, others = ['argparse.Namespace'], []
    if data.startswith(ZIP):
        check_unpacked_size(data)
        for member, (kind, program) in PROGRAMS.items():
            if any(name.endswith(f'/{member}') for name in zip_names(data)):
                raise RefusedError(
                    f'is a program of {kind}, not weights; where you trust it, save its weights alone: '
                    f"torch.save(torch.{program}, 'weights.pth')"
                )
        found = _classes_in(data)
        records = [name for name in found if RECORDS.match(name)]
        others = sorted(set(found) - set(records))
    if any(name.startswith(ULTRALYTICS) for name in others):
        raise RefusedError(
            'is a network of Ultralytics, none of those here; `phalanx weights` lists weights that can be loaded'
        )
    inert: list[Any] = [(_Entries if re.search('[Dd]ict$|CfgNode$', name) else _Record, name) for name in records]
    try:
        with torch.serialization.safe_globals(inert):
            saved = torch.load(io.BytesIO(data), map_location='cpu', weights_only=True)
    except pickle.UnpicklingError as error:
        unknown = re.search(r'GLOBAL ([\w.]+)', str(error))
        what = shorten(others) or (unknown[1] if unknown else f'{first_line(error):.200}')
        raise RefusedError(
            f'holds more than weights, which is not read because it could execute code ({what}); where you trust it, save its '
            f'weights alone: {ALONE}'
        ) from None
    except UNREADABLE as error:
        raise RefusedError(f'is not a complete file of torch.save: {error}') from None
    return find_tensors(saved, key)


def _classes_in(data: bytes) -> list[str]:
    """Names of classes and functions that a file refers to, apart from those of tensors. Raises RefusedError."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
    except UNREADABLE as error:
        raise RefusedError(f'is not a complete file of torch.save: {error}') from None
