"""Weights from a file into a network: our own files and, through `load_original`, those of the originals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from phalanx.families.distillation import network_of
from phalanx.weights.checkpoint import CheckpointError, weights_at
from phalanx.weights.originals import ORIGINALS, load_original, stored_as_in_paddle
from phalanx.weights.originals.distilled import networks_in
from phalanx.weights.pdparams import read_pdparams

Part = Literal['all', 'backbone']
Misshapen = Literal['refuse', 'skip']

ORIGINAL_SUFFIXES = ('.pdparams', '.tar', '.gz', '.tgz')
SHOWN, LINES = 5, 20  # of many names, the first few are told; of many problems


def load_weights(
    model: nn.Module,
    path: Path,
    *,
    part: Part = 'all',
    misshapen: Misshapen = 'refuse',
    network: str | None = None,
) -> list[str]:
    """What of the weights at `path` was not taken, a line for each reason; all others now are those of `model`.

    `path` is a run folder, a checkpoint, a `.safetensors` file, or a `.pdparams` or `.tar.gz` of the original project. With
    `part='backbone'` it may also hold a backbone alone, and whatever else it holds (the head of a classifier) is left out. With
    `misshapen='skip'` a tensor whose shape differs (a head for other classes) stays as `model` has it. `network` names the one
    to fill, where `model` is a distillation.

    Raises CheckpointError when the file is damaged or does not fit.
    """
    is_original = path.suffix in ORIGINAL_SUFFIXES
    weights: dict[str, Any] = dict(read_pdparams(path) if is_original else weights_at(path))
    try:
        if network is not None:
            model = network_of(model, network)
        targets = networks_in(weights, model) if is_original else [(model, weights)]
        notes = [note for each, own in targets for note in _fill(each, dict(own), is_original, part, misshapen)]
    except (ValueError, RuntimeError) as error:  # torch raises RuntimeError for names and shapes
        raise CheckpointError(f'{path}: {_shortened(str(error))}') from None
    return [f'{path}: {note}' for note in notes]


def _fill(model: nn.Module, weights: dict[str, Any], is_original: bool, part: Part, misshapen: Misshapen) -> list[str]:
    """What was not taken of `weights`, which are of one network, as the file names them."""
    own = _own_arrays(model) if is_original else dict(model.state_dict())
    notes: list[str] = []
    if part == 'backbone':
        weights, notes = _of_backbone(weights, own)
    if misshapen == 'skip':
        differing = sorted(name for name in weights.keys() & own.keys() if weights[name].shape != own[name].shape)
        weights = weights | {name: own[name] for name in differing}
        if differing:
            notes.append(f'of another shape there, so as drawn: {", ".join(differing)}')
    if is_original:
        load_original(model, weights)
    else:
        model.load_state_dict(weights)
    return notes


def _shortened(text: str) -> str:
    """The first lines: of weights for another network, every name would be told."""
    lines = text.splitlines()
    more = [f'... and {len(lines) - LINES} more'] if len(lines) > LINES else []
    return '\n'.join([*lines[:LINES], *more])


def _own_arrays(model: nn.Module) -> dict[str, Any]:
    """The weights of `model` by their original names; empty when it has none."""
    if type(model) not in ORIGINALS:
        return {}  # which load_original tells
    original = ORIGINALS[type(model)](model)
    stored = stored_as_in_paddle(model)
    return {original.name(name): tensor.detach().cpu().numpy() for name, tensor in stored.items()}


def _of_backbone(weights: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The weights of the backbone from `weights` and all others from `own`, and what was left out."""
    inside = {name for name in own if name.startswith('backbone.')}
    if not inside:
        raise ValueError('only the backbone was asked for, but the network has no part of that name')
    if not any(name.startswith('backbone.') for name in weights):  # a file of the backbone alone
        weights = {f'backbone.{name}': weight for name, weight in weights.items()}
    left_out = [name.removeprefix('backbone.') for name in weights if name not in inside]
    note = f'{len(left_out)} arrays are no part of the backbone and were left out: {", ".join(left_out[:SHOWN])}'
    rest = {name: weight for name, weight in own.items() if name not in inside}
    taken = {name: weight for name, weight in weights.items() if name in inside}
    return rest | taken, [note] if left_out else []
