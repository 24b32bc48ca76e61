"""Output where no terminal is: in files, logs of CI, and notebooks."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from phalanx.deploy.inputs import Inputs
from phalanx.report.report import Report


class ZMQInteractiveShell:
    """The name by which rich knows a kernel of Jupyter."""


def test_forced_colours_draw_no_bar_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar draws over itself, which a file keeps as thousands of bars; CI and Jupyter's kernels set FORCE_COLOR."""
    monkeypatch.setenv('FORCE_COLOR', '1')
    with Report(tmp_path / 'run', main=True, name='x', total_steps=9) as report:
        report.train({'step': 3, 'epoch': 1.0, 'loss': 0.5, 'lr': 0.1})
        report.warning('slow disk')
    files = Inputs({Path(f'{number}.png'): Path(str(number)) for number in range(3)}, tmp_path, 'predicting')
    assert len(list(files.each())) == 3
    output, errors = capsys.readouterr()
    assert output.splitlines() == ['step 3/9  epoch   1.00  loss  0.5000  lr 1.00e-01', '\x1b[1;33mwarning: \x1b[0mslow disk']
    assert errors == ''


def test_a_notebook_gets_one_text_and_not_an_output_for_each_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, 'get_ipython', ZMQInteractiveShell, raising=False)
    with Report(tmp_path / 'run', main=True, name='x', total_steps=9) as report:
        report.train({'step': 3, 'epoch': 1.0, 'loss': 0.5, 'lr': 0.1})
    assert capsys.readouterr().out == 'step 3/9  epoch   1.00  loss  0.5000  lr 1.00e-01\n'
