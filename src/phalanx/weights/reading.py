"""Loading of weights into a network, from files of Phalanx, of the original projects, of PyTorch and of numpy."""

import io
import logging
import math
import pickle
import re
import tokenize
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.torch
from torch import Tensor, nn

from phalanx.families.distillation import DistillationModel, network_of
from phalanx.nn.backbones.timm_backbone import find_pretrained_backbones
from phalanx.paddle.pdparams import RefusedError, arrays_in
from phalanx.paddle.weights import onnx_layers_of, original_of, paddle_layout
from phalanx.system.errors import LFS, CheckpointError, RequestError
from phalanx.weights.archives import ZIP, ArchiveError, extract_weights, holds_arrays, is_archive, unpack_arrays
from phalanx.weights.checkpoint import JOIN, UNREADABLE, is_pointer, weights_at
from phalanx.weights.finding import FoundWeights, find
from phalanx.weights.libraries import LIBRARIES, check_same_network, slots
from phalanx.weights.matching import COUNTER, Fit, Naming, RowNames, Slot, Weights, shorten
from phalanx.weights.onnx_file import weights_in
from phalanx.weights.torch_file import read_torch
from phalanx.weights.unwrapping import StoredWeights, unwrap

log = logging.getLogger('phalanx')

Part = Literal['all', 'backbone']
Misshapen = Literal['refuse', 'skip']

COUNTED = ('loaded', 'carried', 'missing', 'misshapen', 'left_over')
LINES = 20  # maximum number of problems in a message
# Suffixes alone do not tell: the same bytes are named .pth, .pt, .bin, .pdparams ...
ONE_OF_SEVERAL = re.compile(r'-\d+-of-(?!0*1\.)\d+\.')  # as the hub names the parts of large weights
READ = '.safetensors, .pdparams, .npz, .pth, .pt, .ckpt and .bin of torch.save, .pkl of numpy arrays, and archives with one'
LEGACY_TORCH = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'  # first bytes of files of torch before 1.6
READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}  # of .npy, by version
STUDENTS = ('Student', 'networks.student')  # names of the student of a distillation, in PaddleOCR and here
EXPORTED = 'is an exported network; give the weights that it was exported from'
OTHERS = {  # files that are not weights, by suffix
    '.pdopt': 'holds the state of an optimizer; the weights are in the .pdparams beside it',
    '.pdiparams': 'belongs to an exported inference model, without names of weights; give the .pdparams of its training',
    '.pdmodel': 'is the graph of an exported inference model; give the .pdparams of its training',
    '.states': 'holds the progress of a training; the weights are in the .pdparams beside it',
    '.onnx': EXPORTED,
    '.xml': EXPORTED,
    '.yml': 'is a configuration, not weights',
    '.distcp': f'is a part of a checkpoint of torch.distributed; {JOIN} joins them',
}


@dataclass(frozen=True)
class LoadedWeights:
    """Result of loading a file of weights into a network."""

    origin: FoundWeights
    fits: tuple[Fit, ...]  # one per network that was filled
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Warnings about weights that were not loaded, one line per reason; empty when all fitted."""
        return [
            f'{self.origin.source}: {note}' for note in (*(note for fit in self.fits for note in fit.notes()), *self.remarks)
        ]

    def announce(self) -> None:
        """Log the choice between several weights in the file; outside training, this goes to standard error."""
        for remark in self.remarks:
            log.warning('%s: %s', self.origin.source, remark)

    @property
    def is_whole(self) -> bool:
        """True if no tensor that evaluation needs stayed entirely as initialised; an exported file lacks none of those."""
        is_exported = self.origin.path.suffix == '.onnx'
        return not any((fit.missing and not is_exported) or fit.misshapen for fit in self.fits)

    @property
    def fresh_norms(self) -> list[str]:
        """Batch norms whose statistics stayed as initialised."""
        fresh = (fit.naming.slots[name].ours for fit in self.fits for name in (*fit.missing, *fit.misshapen))
        return [name.removesuffix('.running_var') for name in fresh if name.endswith('.running_var')]

    def facts(self) -> dict[str, Any]:
        """Origin of the weights and numbers of tensors, for the summary of a run."""
        counts = {name: sum(len(getattr(fit, name)) for fit in self.fits) for name in COUNTED}
        return {**self.origin.facts(), **counts}

    def rows(self) -> list[dict[str, str | float]]:
        return [row for fit in self.fits for row in fit.rows()]


def load_weights(
    model: nn.Module,
    source: str | Path,
    *,
    part: Part = 'all',
    misshapen: Misshapen = 'refuse',
    network: str | None = None,
    rows: RowNames | None = None,
    raw: bool = False,
) -> LoadedWeights:
    """Load the weights of `source` into `model`, see `phalanx.weights.finding.find`.

    `source` may be a run folder, a checkpoint, a `.safetensors`, `.pdparams`, `.pt`, `.pth` or `.npz` file, or an archive
    with one of these. With `part='backbone'` it may also be a backbone alone, and other tensors (the head of a classifier)
    are left out. With `misshapen='skip'` tensors that fit are loaded and the rest stays as in `model`. `network`: the network
    to fill, where `model` is a distillation. `rows`: names of the rows of heads; shared rows are loaded from a head for other
    classes. `raw`: the weights as trained, even where a checkpoint has their EMA. An exported file must have every layer of
    evaluation; layers for training only, such as the threshold head of DB, stay as they are.

    Raises CheckpointError, before anything is loaded, if the file is damaged, if a tensor does not fit and `misshapen` is
    'refuse', or if fewer than half of the tensors fit: these are weights of another network.
    """
    origin, remarks, stored = find(source), tuple[str, ...](), StoredWeights({})
    if origin.path.suffix == '.onnx':
        weights, misshapen = read_exported(origin, model), 'skip'
    else:
        stored = read_weights(origin, raw=raw)
        weights, remarks = _unwrap(stored, model, origin)
    # Published weights of a backbone say so themselves.
    if misshapen == 'skip' and origin.part == 'backbone':
        part = 'backbone'
    try:
        if network is not None:
            model = network_of(model, network)
        targets = networks_in(weights, model)
        fits = tuple(compare_weights(each, own, part, rows if misshapen == 'skip' else None) for each, own in targets)
    except ValueError as error:
        raise CheckpointError(f'{origin.source}: {error}') from None
    # All networks are checked before the first one is filled.
    for (each, _), fit in zip(targets, fits, strict=True):
        _check(each, fit, part, misshapen, origin.source, stored)
    for fit in fits:
        fit.fill()
    return LoadedWeights(origin, fits, (*remarks, *(rows.notes() if rows else ())))


def load_own_weights(model: nn.Module) -> None:
    """Load the parts of `model` that name weights of their own. Raises RequestError, with the key, if that fails."""
    for name, part in find_pretrained_backbones(model):
        try:
            loaded = load_weights(part.body.model, part.weights or '', misshapen='skip')
        except CheckpointError as error:
            raise RequestError(f'model.{name}.weights: {error}') from None
        if not loaded.is_whole:
            raise RequestError(f'model.{name}.weights: {loaded.notes[0]}')


def _unwrap(stored: StoredWeights, model: nn.Module, origin: FoundWeights) -> tuple[Weights, tuple[str, ...]]:
    """Weights by names without the prefixes of wrappers, and remarks on them. Raises CheckpointError."""
    try:
        stored = unwrap(stored, model.state_dict().keys())
    except RefusedError as error:
        raise CheckpointError(f'{origin.source}: {error}') from None
    return stored.weights, stored.remarks


def read_weights(origin: FoundWeights, *, raw: bool = False) -> StoredWeights:
    """Read the weights in a file or folder, without executing code from it.

    Raises CheckpointError if it is damaged or not a file of weights, saying what it is instead and what to do.
    """
    if not origin.path.is_file() or is_pointer(origin.path):
        return StoredWeights(weights_at(origin.path, raw=raw), origin.key)
    path = origin.path
    try:
        with path.open('rb') as file:
            head = file.read(512)
        if ONE_OF_SEVERAL.search(path.name):
            raise RefusedError('is one of several parts of the weights: join them in one file with the library that wrote them')
        # safetensors is memory-mapped; all other formats are read into memory, where archives are opened.
        if _is_safetensors(head):
            return StoredWeights(safetensors.torch.load_file(path), origin.key)
        if path.suffix in OTHERS and not head.startswith(LFS):
            raise RefusedError(OTHERS[path.suffix])
        data = path.read_bytes()
        return _parse(extract_weights(data, origin.member) if is_archive(data) else data, path.suffix, origin.key)
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read: {error.strerror}') from None
    except safetensors.SafetensorError as error:
        raise CheckpointError(f'{path}: is not a complete .safetensors file: {error}') from None
    except (RefusedError, ArchiveError) as error:
        raise CheckpointError(f'{path}: {error}') from None


def read_exported(origin: FoundWeights, model: nn.Module) -> Weights:
    """Read the weights in an ONNX file of the original of `model`, by the names of `model`.

    Raises CheckpointError if such files cannot be read for this network, or if the file is damaged or of another network.
    """
    try:
        layers = onnx_layers_of(model)
        if layers is None:
            raise CheckpointError(f'{origin.path}: {EXPORTED}')
        return weights_in(origin.path.read_bytes(), model, layers)
    except OSError as error:
        raise CheckpointError(f'{origin.path}: cannot be read: {error.strerror}') from None
    except (RefusedError, ValueError) as error:
        raise CheckpointError(f'{origin.path}: {error}') from None


def _parse(data: bytes, suffix: str, key: str | None) -> StoredWeights:
    """Parse the content of a weight file, recognised by its first bytes. Raises RefusedError and SafetensorError."""
    if data.startswith(LFS):
        cure = '`git lfs pull` in its repository fetches them, or download the file itself'
        raise RefusedError(f'is a Git LFS pointer ({len(data)} bytes), not the weights: {cure}')
    if data[:512].lstrip().lower().startswith((b'<!doctype', b'<html', b'<?xml')):
        raise RefusedError('is a web page, not weights: the download was answered by a login or an error; fetch the file again')
    if suffix == '.safetensors' or _is_safetensors(data[:512]):
        return StoredWeights(safetensors.torch.load(data), key)
    # Both torch and numpy write zip archives.
    if data.startswith((ZIP, LEGACY_TORCH)):
        return StoredWeights(_read_npz(data), key) if suffix == '.npz' or holds_arrays(data) else read_torch(data, key)
    if suffix in ('.pt', '.pth'):
        raise RefusedError('is not a file of torch.save')
    if suffix != '.pdparams' and not data.startswith(pickle.PROTO):
        raise RefusedError(f'is none of the files of weights that are read: {READ}')
    return StoredWeights(arrays_in(data), key)


def _is_safetensors(head: bytes) -> bool:
    """True if a file begins as `.safetensors`: the length of the header in 8 bytes, then the header, which is JSON."""
    return len(head) > 8 and head[8:9] == b'{' and int.from_bytes(head[:8], 'little') < 1 << 32


def _read_npz(data: bytes) -> Weights:
    """Read the arrays of a file of `numpy.savez`. Raises ArchiveError and RefusedError."""
    try:
        return {name: _read_npy(content) for name, content in unpack_arrays(data).items()}
    except (*UNREADABLE, SyntaxError, tokenize.TokenError) as error:
        raise RefusedError(f'is not a complete .npz file: {error!s:.200}') from None


def _read_npy(content: bytes) -> np.ndarray:
    """Read the array of a `.npy` file. (`np.load` allocates the size in the header before reading the data.)"""
    file = io.BytesIO(content)
    # Object arrays have no dtype that frombuffer accepts, so no pickle is ever read.
    shape, fortran, dtype = READ_HEADER[np.lib.format.read_magic(file)](file)
    if min(shape, default=0) < 0:
        raise ValueError(f'there is no array of shape {shape}')
    # Shares the memory of the data; a header that claims more than that raises ValueError.
    values = np.frombuffer(bytearray(content), dtype, math.prod(shape), file.tell())
    return values.reshape(shape, order='F' if fortran else 'C')


def networks_in(arrays: Weights, model: nn.Module) -> list[tuple[nn.Module, Weights]]:
    """Pair networks with the arrays of a file: all networks of a distillation, or `model`.

    From the file of a distillation, another model is filled with the student. Raises ValueError if a network is missing.
    """
    # Names of the network itself: nothing to select.
    if arrays.keys() & model.state_dict().keys():
        return [(model, arrays)]
    if isinstance(model, DistillationModel):
        return [(network, select_network(arrays, name.capitalize())) for name, network in model.networks.items()]
    for student in STUDENTS:
        if any(name.startswith(f'{student}.') for name in arrays):
            return [(model, select_network(arrays, student))]
    return [(model, arrays)]


def select_network(arrays: Weights, name: str) -> Weights:
    """Select the arrays of the network `name` of a distillation, without this prefix.

    Raises ValueError, with the names in the file, if none is of that network.
    """
    # Files of a distillation have one prefix per network.
    prefix = f'{name}.'
    selected = {array.removeprefix(prefix): values for array, values in arrays.items() if array.startswith(prefix)}
    if not selected:
        prefixes = ', '.join(sorted({array.partition('.')[0] for array in arrays}))
        raise ValueError(f'the weights have no network {name!r}; their names start with {prefixes}')
    return selected


def namings(model: nn.Module, paddles: bool = True) -> list[Naming]:
    """Names of the tensors of `model` in files: ours, those of its original, those of PyTorch's libraries.

    `paddles`: True for a file with the names of the original that has Paddle's layout of linear layers and names of statistics,
    False for one that has torch's.
    """
    state = model.state_dict()
    result = [Naming({name: Slot(name, tensor) for name, tensor in state.items()})]
    # The project that the network comes from.
    original = original_of(model)
    if original is not None:
        if not paddles:
            original = replace(original, buffers=())
        stored = paddle_layout(model) if paddles else state
        theirs = {original.name(name): Slot(name, tensor) for name, tensor in stored.items()}
        result.append(Naming(theirs, original.is_redundant))
    from phalanx.weights.detectors import namings_of_detectors  # here: a start from random weights does not need it

    result += namings_of_detectors(state, paddle_layout(model) if paddles else None)
    # Libraries that have the same backbone.
    inside = {name: tensor for name, tensor in state.items() if name.startswith('backbone.')}
    of_libraries = LIBRARIES.get(type(getattr(model, 'backbone', None)), ())
    return [*result, *(Naming(slots(inside, rules)) for rules in of_libraries)]


def compare_weights(model: nn.Module, weights: Weights, part: Part, rows: RowNames | None = None) -> Fit:
    """Compare `weights` with `model`. Raises ValueError for a missing part, and for weights of a known other network."""
    check_same_network(getattr(model, 'backbone', None), weights)
    known = namings(model, paddles=_is_of_paddle(weights))
    if part != 'all':
        if not any(name.startswith(f'{part}.') for name in model.state_dict()):
            raise ValueError(f'only the {part} was requested, but the network has no part of that name')
        known = [*(naming.of_part(part) for naming in known), *(naming.alone(part) for naming in known)]
    # The naming with the most common names; shapes are compared afterwards.
    likeliest = max(known, key=lambda naming: len(naming.slots.keys() & weights.keys()))  # the first one of equals
    _refuse_integers(likeliest, weights)
    return Fit.of(likeliest, weights, rows)


def _refuse_integers(naming: Naming, weights: Weights) -> None:
    """Raise ValueError for integers in the place of floats: quantised weights, or the bits of bfloat16 in numpy."""
    for name in (name for name in naming.slots if name in weights):
        values = weights[name]
        is_float = values.is_floating_point() if isinstance(values, Tensor) else values.dtype.kind == 'f'
        if naming.slots[name].tensor.is_floating_point() and not is_float:
            raise ValueError(f'{name} is of {values.dtype}, such as quantised weights: give weights in floating point')


def _is_of_paddle(weights: Weights) -> bool:
    """True if weights with the names of the original have the layout of Paddle: arrays, or tensors with its statistics."""
    # Paddle names batch-norm statistics _mean and _variance, and stores linear layers as [in, out].
    names = any(name.endswith(('._mean', '._variance')) for name in weights)
    return names or not any(isinstance(value, Tensor) for value in weights.values())


def _check(model: nn.Module, fit: Fit, part: Part, misshapen: Misshapen, source: str, stored: StoredWeights) -> None:
    """Raise CheckpointError if the weights are of another network, or if some do not fit and `misshapen` forbids it."""
    # Most tensors must fit: a few common names and shapes occur in unrelated networks, too.
    what = type(model).__name__ if part == 'all' else f'the {part} of {type(model).__name__}'
    if fit.share < 0.5:
        total = sum(not name.endswith(COUNTER) for name in fit.naming.slots)
        raise CheckpointError(
            f'{source}: these are weights of another network: of the {total} tensors of {what} '
            f'{len(fit.missing)} are missing and {len(fit.misshapen)} have another shape; {_hint(model, fit, part, stored)}'
        )
    # For a backbone alone, the head of its classifier is left over on purpose.
    lines = [line for line in fit.problems() if part == 'all' or not line.startswith('left over')]
    if misshapen == 'refuse' and lines:
        whole = [key for key, inside in _keys_that_fit(model, part, stored).items() if not inside.problems()]
        more = [f'... and {len(lines) - LINES} more'] if len(lines) > LINES else []
        more += [f'append #key={key}: `{key}` alone fits' for key in whole]
        raise CheckpointError('\n'.join([f'{source}: the weights do not fit {what}:', *lines[:LINES], *more]))


def _keys_that_fit(model: nn.Module, part: Part, stored: StoredWeights) -> dict[str, Fit]:
    """Beginnings of the names in a file below which it has the network: attributes of a training script's module."""
    if stored.key is not None:
        return {}
    own = model.state_dict()
    places = [name.split('.')[:-1] for name in stored.weights]
    counts = Counter('.'.join(place[:levels]) for place in places for levels in range(1, min(len(place), 3) + 1))
    fits = {}
    for key in (key for key, count in counts.items() if 2 * count >= len(own)):
        fit = compare_weights(model, unwrap(replace(stored, key=key), own).weights, part)
        if fit.share >= 0.5:
            fits[key] = fit
    return fits


def _hint(model: nn.Module, fit: Fit, part: Part, stored: StoredWeights) -> str:
    """Hint for weights of another network."""
    if keys := _keys_that_fit(model, part, stored):
        return f'the file has the network in {" and ".join(f"`{key}`" for key in keys)}: append #key={next(iter(keys))}'
    has_backbone = any(name.startswith('backbone.') for name in model.state_dict())
    # The most frequent mistakes: a classifier for a whole network, another size, another project.
    if part == 'all' and has_backbone and compare_weights(model, fit.weights, 'backbone').share >= 0.5:
        return 'its backbone fits: add train.init_part=backbone'
    if fit.misshapen:
        return f'is it another size of the network? {fit.shapes(fit.misshapen[0])}'
    if original_of(model) is None and not fit.loaded:
        return (
            f'there is no conversion for {type(model).__name__}, and the names in the file differ: {shorten(list(fit.weights))}'
        )
    return f'the file has {shorten(list(fit.weights))}, the network {shorten(list(fit.naming.slots))}'
