"""Extraction of the weights of one network from files of training scripts: nested entries, and prefixes of wrappers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from phalanx.paddle.pdparams import RefusedError
from phalanx.weights.matching import Weights, shorten

EMA = ('state_dict_ema', 'ema_state_dict', 'model_ema_state_dict', 'model_ema', 'params_ema', 'ema_model', 'ema_net', 'ema')
PLAIN = ('state_dict', 'model_state_dict', 'model', 'net', 'network', 'params', 'module', 'shadow')
# Parts of names added by torch.compile, Lightning Fabric, FSDP and activation checkpointing, at any depth.
WRAPPERS = ('_orig_mod', '_forward_module', '_fsdp_wrapped_module', '_checkpoint_wrapped_module')
MOST_LEVELS = 6
# Entries of the weights as trained in files whose `state_dict` is the EMA, those of MMEngine's EMAHook and of Lightning's
# WeightAveraging, each with an entry that only these files have.
AS_TRAINED = {'ema_state_dict': 'message_hub', 'current_model_state': 'averaging_state'}
COUNTERS = ('n_averaged', 'steps', 'num_updates')  # entries beside the tensors of an average


@dataclass(frozen=True)
class StoredWeights:
    """Weights of a file, by their names in it."""

    weights: Weights
    key: str | None = None  # requested entry (`#key=`) that is a prefix of names, not an entry of the file
    remarks: tuple[str, ...] = ()  # on the choice between several weights


def find_tensors(saved: Any, key: str | None) -> StoredWeights:
    """Find the tensors in an object from `torch.save`: those of the entry `key`, else of an EMA, else as trained.

    Raises RefusedError if there are none.
    """
    saved, remarks = _separate_weights_as_trained(saved, key)
    if key is not None and _has_tensors(_entries(saved).get(key)):
        saved, key = saved[key], None
    # Descend into nested entries, an EMA before the weights as trained.
    for _ in range(MOST_LEVELS):
        inside = [name for name in (*EMA, *PLAIN) if _has_tensors(_entries(saved).get(name))]
        if not inside:
            break
        if key is None:
            unused = [name for name in EMA if name not in inside and isinstance(_entries(saved).get(name), Mapping)]
            remarks += [f'`{name}` has no tensors by name; using `{inside[0]}`' for name in unused]
            remarks += _choice(inside)
        saved = saved[inside[0]]
    tensors = {str(name): value for name, value in _entries(saved).items() if isinstance(value, Tensor)}
    if not tensors:
        others = [str(name) for name, entry in _entries(saved).items() if _has_tensors(entry)]
        cure = f'; #key=NAME selects an entry, of {shorten(others)}' if others else ''
        raise RefusedError(f'holds no weights: expected a state_dict, or a mapping with one{cure}')
    return StoredWeights(tensors, key, tuple(remarks))


def unwrap(stored: StoredWeights, own: Collection[str]) -> StoredWeights:
    """Strip the prefixes of wrappers, in any order, and prefer an EMA if there is one.

    A prefix is not stripped once a name is one of `own`, the names of the network. Raises RefusedError without an entry `key`.
    """
    weights, remarks = {_strip_wrappers(name): value for name, value in stored.weights.items()}, list(stored.remarks)
    if stored.key is not None:
        if not any(name.startswith(f'{stored.key}.') for name in weights):
            prefixes = dict.fromkeys(name.partition('.')[0] for name in weights)
            raise RefusedError(f'has no entry {stored.key!r}; its names begin with {shorten(list(prefixes))}')
        weights = _strip_prefix(weights, stored.key)
    # Strip one prefix at a time, until names are those of the network or no known prefix is left.
    while not weights.keys() & set(own):
        groups = {name.partition('.')[0] for name in weights if '.' in name}
        matches = [prefix for prefix in (*EMA, *PLAIN) if prefix in groups]
        if not matches:
            break
        remarks += _choice(matches)
        # Several prefixes are sets of weights of their own; beside a single one, unprefixed tensors belong to it.
        others = {} if len(matches) > 1 else {n: value for n, value in weights.items() if not n.startswith(f'{matches[0]}.')}
        weights = {**_strip_prefix(weights, matches[0]), **{n: value for n, value in others.items() if n not in COUNTERS}}
    return StoredWeights(weights, None, tuple(remarks))


def _separate_weights_as_trained(saved: Any, key: str | None) -> tuple[Any, list[str]]:
    """Remove the weights as trained beside an EMA in `state_dict`, unless `key` selects them; also returns remarks."""
    for trained, other in AS_TRAINED.items():
        if not _has_tensors(_entries(saved).get('state_dict')) or not {trained, other} <= _entries(saved).keys():
            continue
        if key == trained:
            return saved, [f'`{trained}` has the weights as trained; the EMA is in `state_dict`']
        remark = f'using the EMA, `state_dict`, not the weights as trained, `{trained}`; #key={trained} selects those'
        return {name: entry for name, entry in saved.items() if name != trained}, [] if key else [remark]
    return saved, []


def _choice(names: list[str]) -> list[str]:
    """Remark on the choice of the first of several entries or prefixes; empty without a choice."""
    others = [name for name in names[1:] if (name in EMA) != (names[0] in EMA)]
    if names[0] not in EMA or not others:
        return []
    return [f'using the EMA, `{names[0]}`, not the weights as trained, `{others[0]}`; #key={others[0]} selects those']


def _entries(saved: Any) -> Mapping[Any, Any]:
    return saved if isinstance(saved, Mapping) else {}


def _has_tensors(saved: Any, levels: int = MOST_LEVELS) -> bool:
    """True if a mapping has tensors by name, also in its entries, down to `levels`: a pickle may contain itself."""
    # In some files COUNTERS are tensors, too, without being weights.
    inside = _entries(saved)
    if any(isinstance(value, Tensor) and name not in COUNTERS for name, value in inside.items()):
        return True
    entries = [inside[name] for name in (*EMA, *PLAIN) if name in inside]
    return levels > 0 and any(_has_tensors(entry, levels - 1) for entry in entries)


def _strip_wrappers(name: str) -> str:
    return '.'.join(part for part in name.split('.') if part not in WRAPPERS)


def _strip_prefix(weights: Weights, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(f'{prefix}.'): value for name, value in weights.items() if name.startswith(f'{prefix}.')}
