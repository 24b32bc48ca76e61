"""Exported files as people name them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.cli.predict_options import predict_parser
from phalanx.deploy.exported import find_exported
from phalanx.system.errors import RequestError
from running import run_here


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path('runs/mine').mkdir(parents=True)


def test_a_run_folder_means_its_exported_file() -> None:
    for name in ('other.onnx', 'model.onnx'):
        Path('runs/mine', name).touch()
        assert find_exported(Path('runs/mine')) == Path('runs/mine', name)  # the only one, then the usual one


def test_a_run_folder_without_an_exported_file_names_the_command_that_writes_one() -> None:
    with pytest.raises(RequestError, match=r'runs/mine: holds no exported file; `phalanx export runs/mine` writes one'):
        find_exported(Path('runs/mine'))


def test_an_exported_file_that_does_not_exist_is_answered_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    Path('runs/mine/model.onnx').touch()
    assert run_here('eval', 'runs/mime/model.onnx') == 2
    message = capsys.readouterr().err
    assert "runs/mime/model.onnx: there is no such file; did you mean 'runs/mine/model.onnx'?" in message


def test_a_folder_that_cannot_be_written_to_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, 'access', lambda *_: False)  # as on a read-only disk, also for root
    folder = tmp_path / 'runs/mine'
    assert run_here('export', 'pp_liteseg_digits', '--out', 'runs/mine/model.onnx') == 2
    assert capsys.readouterr().err == f'{folder}: cannot be written to; --out FILE writes the model elsewhere\n'
    assert run_here('data', 'check', 'pp_liteseg_digits', '--page', 'runs/mine/new/data.html') == 2
    assert capsys.readouterr().err == f'{folder}: cannot be written to; --page FILE writes the page elsewhere\n'


def test_predictions_go_to_the_folder_results_by_default() -> None:
    assert predict_parser().parse_args(['runs/mine', 'a.jpg']).out == Path('results')
