"""An exported file gives, without torch, the results of the run that it came from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import pytest

import phalanx.runtime
from phalanx import load_run
from phalanx.cli.main import main
from phalanx.deploy.writing import convert_to_openvino
from phalanx.runtime import ArtifactError, Found, TextRegion
from running import Command, clean_environment

ROOT = Path(__file__).parents[2]
FAMILIES = ('segmentation', 'detection', 'recognition', 'table', 'text_detection')
FEW = ('recognition',)  # whose file `make test` writes: each takes seconds
SIZES = ((64, 96), (40, 200), (97, 70))
# Networks that have hardly trained: many boxes have one score, so that their order is chance, and many pixels of a map are near
# the threshold, each of which may change the outline of a text.
LEAST_ALIKE = {'detection': 0.98, 'text_detection': 0.8}
UNDEFINED = """
from math import nan

from phalanx.families.recognition.metric.reading import ReadingAccuracy


class Undefined(ReadingAccuracy):
    def compute(self):
        return {'accuracy': nan, 'edit_similarity': nan}


PLUGIN = {'recognition': {'metrics': {'undefined': Undefined}}}
"""
WITHOUT_TORCH = """
import sys, time
sys.modules['torch'] = None  # whoever imports it fails
begin = time.perf_counter()
import numpy
import phalanx.runtime
predict = phalanx.runtime.load(sys.argv[1])
print(f'{time.perf_counter() - begin:.2f} s to import and load', file=sys.stderr)
print(predict(numpy.zeros((64, 96, 3), numpy.uint8)))
import phalanx.deploy.serve.app, phalanx.cli.serve
from phalanx.cli.main import main
sys.exit(0 if main(['train', 'any']) == 2 else 'phalanx train did without torch')
"""


def image(H: int, W: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (H, W, 3), np.uint8)


def assert_alike(found: Any, expected: Any) -> None:
    """Numbers within 1e-4, relative to 1 + their size; all else equal."""
    if isinstance(expected, np.ndarray) and expected.dtype == np.uint8:  # classes
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, float | np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, str | int):
        assert found == expected
    else:
        assert type(found) is type(expected)
        for name in type(expected).__dataclass_fields__:
            assert_alike(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize('family', [pytest.param(each, marks=() if each in FEW else pytest.mark.long) for each in FAMILIES])
def test_an_exported_file_gives_the_predictions_of_the_run(
    family: str, family_runs: dict[str, Path], exported: Callable[[str], Path]
) -> None:
    """Images of three sizes, one by one and as a batch."""
    own, run = phalanx.runtime.load(exported(family)), load_run(family_runs[family], device='cpu')
    images = [image(*size) for size in SIZES]
    expected = [run(each) for each in images]
    for found in ([own(each) for each in images], own.batch([*images, images[0]])[:3]):
        if family in LEAST_ALIKE:
            for regions, right in zip(found, expected, strict=True):
                assert len(regions) > 5
                assert len(right) > 5
                assert sum(any(map(partial(are_alike, one), regions)) for one in right) >= LEAST_ALIKE[family] * len(right)
        else:
            assert_alike(found, expected)


def are_alike(one: Found | TextRegion, other: Found | TextRegion) -> bool:
    try:
        assert_alike(one, other)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize('family', ['recognition', pytest.param('table', marks=pytest.mark.long)])
def test_openvino_gives_the_same(family: str, exported: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip('openvino')
    source = tmp_path / 'model.onnx'
    source.write_bytes(exported(family).read_bytes())
    by_onnxruntime = phalanx.runtime.load(source)
    file = convert_to_openvino(source, by_onnxruntime.guide)
    by_openvino = phalanx.runtime.load(file)
    assert by_openvino.guide == by_onnxruntime.guide
    for size in SIZES:
        assert_alike(by_openvino(image(*size)), by_onnxruntime(image(*size)))
    file.with_suffix('.bin').unlink()
    with pytest.raises(ArtifactError, match=r'model\.xml: OpenVINO cannot read it, or the \.bin file beside it'):
        phalanx.runtime.load(file)


def test_the_runtime_does_without_torch(exported: Callable[[str], Path]) -> None:
    words = [sys.executable, '-c', WITHOUT_TORCH, str(exported('recognition'))]
    done = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, check=False)
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('Reading(text=')
    assert done.stderr.endswith('phalanx train needs torch: pip install "phalanx-vision[train]"\n')


def test_serve_needs_only_the_packages_of_its_extra() -> None:
    extras = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['optional-dependencies']
    ours, others = ({re.split(r'[^\w.-]', text)[0].lower() for text in extras[extra]} for extra in ('serve', 'train'))
    unneeded = sorted(
        module for module, owners in packages_distributions().items() if {name.lower() for name in owners} <= others - ours
    )
    assert {'torch', 'rich', 'safetensors'} <= set(unneeded)
    blocked = f'import sys; sys.modules |= dict.fromkeys({unneeded})'
    words = [sys.executable, '-c', f'{blocked}; import phalanx.cli.serve, phalanx.deploy.serve.app']
    done = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    program = f"{blocked}; sys.modules['yaml'] = None; from phalanx.cli.main import main; main(['serve', 'any'])"
    done = subprocess.run([sys.executable, '-c', program], env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.stderr == 'phalanx serve needs yaml: pip install "phalanx-vision[serve]"\n'
    program = f'{blocked}; import phalanx; phalanx.load_run'
    done = subprocess.run([sys.executable, '-c', program], env=clean_environment(), capture_output=True, text=True, check=False)
    assert re.search(r'phalanx\.load_run needs \w+: pip install "phalanx-vision\[train\]"; exported files are', done.stderr)


def test_a_file_that_is_not_an_exported_model_is_refused_with_the_reason(
    exported: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match='there is no such file'):
        phalanx.runtime.load(tmp_path / 'none.onnx')
    (tmp_path / 'model.txt').touch()
    with pytest.raises(ArtifactError, match=r'is not one of \.onnx, '):
        phalanx.runtime.load(tmp_path / 'model.txt')
    (tmp_path / 'cut.onnx').write_bytes(exported('recognition').read_bytes()[:1000])
    with pytest.raises(
        ArtifactError, match=r'cut\.onnx: onnxruntime .* cannot read it; it is damaged, or made for a newer one'
    ):
        phalanx.runtime.load(tmp_path / 'cut.onnx')
    other = onnx.load(exported('recognition'))
    del other.metadata_props[:]
    onnx.save(other, tmp_path / 'other.onnx')
    with pytest.raises(ArtifactError, match=r'other\.onnx: .* was not written by `phalanx export`'):
        phalanx.runtime.load(tmp_path / 'other.onnx')
    with pytest.raises(ArtifactError, match=r'is a folder; name the file in it that `phalanx export` wrote'):
        phalanx.runtime.load(tmp_path)
    other.opset_import[0].version = 999
    onnx.save(other, tmp_path / 'other.onnx')
    with pytest.raises(ArtifactError, match=r'it is damaged, or made for a newer one: .*[oO]pset'):
        phalanx.runtime.load(tmp_path / 'other.onnx')


WHOLE = {'format': 1, 'phalanx': '1', 'task': 'recognition', 'input': {}, 'preparation': {}, 'reading': {}}


@pytest.mark.parametrize(
    ('metadata', 'reason'),
    [
        ('no JSON', r'its metadata about classes and images cannot be read \(Expecting value'),
        ('[1]', 'its metadata about classes and images cannot be read'),
        ('{}', 'its metadata lacks format; export again'),
        (json.dumps({**WHOLE, 'format': 2, 'phalanx': '9.0'}), 'was written by phalanx 9.0, which is newer than this'),
        (json.dumps({'format': 1, 'phalanx': '1', 'task': 'table'}), 'its metadata lacks input, preparation, reading'),
        (json.dumps({**WHOLE, 'task': 'pose'}), "is for 'pose'; this version knows segmentation, detection, "),
    ],
)
def test_a_file_with_foreign_metadata_is_refused_with_the_reason(
    metadata: str, reason: str, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    model = onnx.load(exported('recognition'))
    onnx.helper.set_model_props(model, {'phalanx': metadata})
    onnx.save(model, tmp_path / 'model.onnx')
    with pytest.raises(ArtifactError, match=rf'model\.onnx: {reason}'):
        phalanx.runtime.load(tmp_path / 'model.onnx')


@pytest.mark.long
def test_an_export_to_openvino_names_both_files_and_their_size(family_runs: dict[str, Path], phalanx_here: Command) -> None:
    pytest.importorskip('openvino')
    done = phalanx_here('export', str(family_runs['recognition']), '--format', 'openvino', '--out', 'small.xml')
    assert done.returncode == 0, done.stderr
    size = sum(Path('small').with_suffix(suffix).stat().st_size for suffix in ('.xml', '.bin'))
    assert done.stdout.startswith(f'small.xml and small.bin: {size / 2**20:.1f} MiB, images [')


def test_an_exported_file_in_place_of_a_run_is_reported(
    exported: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(exported('recognition'))
    assert main(['predict', file, file, '--out', 'results']) == 2
    message = f'{file}: is an exported model, for `phalanx eval` and `phalanx serve`; give its run folder here'
    assert message in capsys.readouterr().err


def test_an_input_that_is_not_an_image_is_refused_with_the_reason(exported: Callable[[str], Path]) -> None:
    predict = phalanx.runtime.load(exported('recognition'))
    with pytest.raises(ValueError, match=r'of uint8, in RGB order; got \[64, 96\] of float64'):
        predict(np.zeros((64, 96)))


@pytest.mark.parametrize(
    'family', ['recognition', *(pytest.param(each, marks=pytest.mark.long) for each in ('segmentation', 'table'))]
)
def test_a_file_is_evaluated_beside_its_weights(
    family: str, family_runs: dict[str, Path], exported: Callable[[str], Path], phalanx_here: Command, tmp_path: Path
) -> None:
    """The whole evaluation set by the metric of the run; 5 samples each."""
    page = tmp_path / 'page.html'
    done = phalanx_here('eval', str(exported(family)), '--data', str(family_runs[family]), '--json', '--page', str(page))
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output['samples'] == 5
    assert output['metrics'] == pytest.approx(output['checkpoint'], abs=1e-4)
    assert max(map(abs, output['differences'].values())) < 1e-4
    assert 0 < output['cost']['median_ms'] <= output['cost']['p95_ms']
    assert output['cost']['best_batch'] in (1, 2, 4)  # of 5 samples
    assert output['cost']['best_batch_ms'] > 0
    assert output['cost']['size_mib'] == pytest.approx(exported(family).stat().st_size / 2**20)

    of_weights = tmp_path / 'weights.html'
    done = phalanx_here('eval', str(family_runs[family]), '--page', str(of_weights), '--json')
    assert done.returncode == 0, done.stderr
    if family != 'recognition':  # whose worst lines are ties
        captions = partial(re.findall, r'<p class="muted">([^<]*)</p>|<figcaption>([^<]*)</figcaption>')
        assert captions(page.read_text())[1:] == captions(of_weights.read_text())[1:] != []  # the first names the weights
    assert str(exported(family)) in page.read_text() and 'data:image/' in page.read_text()


def test_a_file_of_raw_weights_is_evaluated_beside_them(exported: Callable[[str], Path], phalanx_here: Command) -> None:
    small = ('data.train_lines=4', 'data.eval_lines=2', 'model.backbone.squeeze=false', 'train.workers=0', 'device=cpu')
    ends = ('train.steps=1', 'train.global_batch_size=2', 'ema={kind: exponential, decay: 0.9}')
    assert phalanx_here('train', 'crnn_digits', '--save_dir', 'run', '--set', *small, *ends).returncode == 0
    for flags, kind in (((), 'EMA'), (('--raw',), 'as trained')):
        done = phalanx_here('eval', str(exported('recognition')), '--data', 'run', '--json', *flags)
        assert done.returncode == 0, done.stderr
        assert f'checkpoint: run, step 1 (best), {kind}' in done.stderr


def test_a_metric_that_is_undefined_is_null_in_json(
    family_runs: dict[str, Path],
    exported: Callable[[str], Path],
    phalanx_here: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NaN is not JSON (RFC 8259), though Python reads it."""
    monkeypatch.setenv('PHALANX_PLUGINS', '')  # which --plugin sets for the rest of this process
    (tmp_path / 'undefined.py').write_text(UNDEFINED)
    words = ('--plugin', str(tmp_path / 'undefined.py'), '--set', 'metric.name=undefined')
    done = phalanx_here('eval', str(exported('recognition')), '--data', str(family_runs['recognition']), '--json', *words)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout, parse_constant=pytest.fail)
    assert output['metrics'] == output['checkpoint'] == output['differences'] == {'accuracy': None, 'edit_similarity': None}


def test_an_evaluation_on_other_data_is_refused(
    family_runs: dict[str, Path], exported: Callable[[str], Path], phalanx_here: Command
) -> None:
    file = str(exported('recognition'))
    alone = phalanx_here('eval', file)
    assert alone.returncode == 2
    assert 'is not in a run folder; name the run or recipe with the evaluation data: --data RUN' in alone.stderr
    other = phalanx_here('eval', file, '--data', str(family_runs['detection']))
    assert other.returncode == 2
    assert 'is a recognition model, the recipe is for detection' in other.stderr
