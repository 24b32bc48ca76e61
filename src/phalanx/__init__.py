"""Phalanx trains vision models on one device or many nodes with one command, and gives the same result on each."""

from __future__ import annotations

__version__ = '0.1.0'

__all__ = ['create_model', 'load_run']


def __getattr__(name: str) -> object:
    """Loads what needs torch and the families only when it is asked for: `phalanx --version` need not wait for them."""
    if name == 'load_run':
        from phalanx.engine.runs import load_run

        return load_run
    if name == 'create_model':
        from phalanx.engine.zoo import create_model

        return create_model
    raise AttributeError(f'module phalanx has no attribute {name!r}')
