"""The notebook of the documentation: its cells run from top to bottom, without Jupyter."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from phalanx.engine.trained import Trained

NOTEBOOK = json.loads((Path(__file__).parents[2] / 'docs' / 'notebook.ipynb').read_text(encoding='utf-8'))
CELLS: list[str] = [''.join(cell['source']) for cell in NOTEBOOK['cells'] if cell['cell_type'] == 'code']


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    Path('notebook.py').write_text('\n'.join(CELLS))
    names = runpy.run_path('notebook.py')
    torch.set_num_threads(threads)
    assert isinstance(names['model'], Trained)
    assert names['steps'] == [2, 4, 6, 8]
    assert torch.tensor(names['losses']).isfinite().all()
    assert names['class_map'].shape == names['image'].shape[:2]
    assert Path('runs/notebook/report.html').is_file()


def test_the_notebook_is_kept_without_what_it_printed() -> None:
    assert [(cell['outputs'], cell['execution_count']) for cell in NOTEBOOK['cells'] if cell['cell_type'] == 'code'] == [
        ([], None) for _ in CELLS
    ]
