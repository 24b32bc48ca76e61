"""Phalanx trains vision models on one device or many nodes with one command, and gives the same result on each."""

from importlib import import_module

__version__ = '0.1.0'

__all__ = ['Reader', 'TableReader', 'Trained', 'create_model', 'evaluate', 'load_run', 'read', 'train']

_HOMES = {
    'Reader': 'phalanx.deploy.read',
    'TableReader': 'phalanx.deploy.tables',
    'Trained': 'phalanx.engine.trained',
    'create_model': 'phalanx.engine.zoo',
    'evaluate': 'phalanx.cli.functions',
    'load_run': 'phalanx.engine.trained',
    'read': 'phalanx.deploy.read',
    'train': 'phalanx.cli.functions',
}


def __getattr__(name: str) -> object:
    """Loads what needs torch and the families only when it is asked for: `phalanx --version` need not wait for them."""
    if name not in _HOMES:
        raise AttributeError(f'module phalanx has no attribute {name!r}')
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith('phalanx'):
            raise
        cure = 'pip install "phalanx-vision[train]"; exported files are run by phalanx.runtime, which does without'
        raise ModuleNotFoundError(f'phalanx.{name} needs {error.name}: {cure}', name=error.name) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
