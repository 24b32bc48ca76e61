"""Exported files as people name them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from phalanx.cli.predict_options import predict_parser
from phalanx.deploy.exported import find_exported
from phalanx.families.detection import draw as detection
from phalanx.families.recognition import draw as lines
from phalanx.families.segmentation import draw as segmentation
from phalanx.families.table import draw as table
from phalanx.families.text_detection import draw as pages
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


@pytest.mark.parametrize('content', ['{"columns": []}', '[1]', 'no JSON'])
def test_an_export_does_not_replace_a_file_that_is_no_metadata(content: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A run folder holds table.json, its classes or worst texts."""
    Path('runs/mine/table.json').write_text(content)
    assert run_here('export', 'pp_liteseg_digits', '--out', 'runs/mine/table.onnx') == 2
    fault = 'runs/mine/table.json, which no export wrote, would be replaced; choose another name'
    assert capsys.readouterr().err == f'--out runs/mine/table.onnx: {fault}\n'
    assert Path('runs/mine/table.json').read_text() == content


@pytest.mark.parametrize(
    ('words', 'fault'),
    [
        (('runs/mine/model.onnx', '--nproc_per_node', '2'), 'is evaluated in this process, on its CPU'),
        (('pp_liteseg_digits', '--data', 'runs/mine'), '--data: is for an exported file; pp_liteseg_digits names its own data'),
        (('runs/mine/model.pt2',), 'runs/mine/model.pt2: is an exported model, for torch.export.load'),
    ],
)
def test_what_an_evaluation_cannot_use_is_refused(
    words: tuple[str, ...], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ('.onnx', '.pt2'):
        Path(f'runs/mine/model{suffix}').touch()
    assert run_here('eval', *words) == 2
    assert fault in capsys.readouterr().err


def test_the_help_names_all_files_that_predictions_can_be_saved_as() -> None:
    saved = next(action.help for action in predict_parser()._actions if action.dest == 'save')
    families = (segmentation.build_writers(()), detection.build_writers(0.5), *(each.WRITERS for each in (lines, table, pages)))
    assert set().union(*(writers.formats for writers in families)) <= set(re.findall(r'\w+', saved or ''))


def test_predictions_go_to_the_folder_results_by_default() -> None:
    assert predict_parser().parse_args(['runs/mine', 'a.jpg']).out == Path('results')
