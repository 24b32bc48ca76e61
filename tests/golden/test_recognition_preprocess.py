"""Text encoding, reading, metric and pre-processing against PaddleOCR: data/recognition_facts.json and its arrays."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from phalanx.data.samples import Image
from phalanx.families.recognition.characters import Characters, Dictionary, Reading, UnusableTextError
from phalanx.families.recognition.data import DATA as SETS
from phalanx.families.recognition.loss import CTC
from phalanx.families.recognition.metric import ReadingAccuracy
from phalanx.families.recognition.models import MODELS
from phalanx.families.recognition.task import Recognition, RecognitionBatch
from phalanx.families.recognition.texts import Texts
from phalanx.families.recognition.transforms import Concatenate
from phalanx.runtime.prepare import fitted_line

DATA = Path(__file__).parent / 'data'
FACTS = json.loads((DATA / 'recognition_facts.json').read_text())
NRTR = json.loads((DATA / 'ppocrv4_rec.json').read_text())['encoded']
NO_LINE: dict[str, Any] = {'images': torch.zeros(1, 3, 1, 1, dtype=torch.uint8), 'widths': torch.ones(1)}
ARRAYS = dict(np.load(DATA / 'recognition_preprocess.npz'))
DICTIONARIES = {
    'none': Dictionary(),
    'en_space': Dictionary(dictionary='en', space=True),
    'en_nospace': Dictionary(dictionary='en'),
}


def characters(example: dict[str, Any]) -> Characters:
    return DICTIONARIES[example['dict']].read()


def image(seed: int, height: int, width: int, kind: str = 'smooth') -> Image:
    """The inputs of the golden arrays, made by the rule that stands beside them."""
    if kind == 'random':
        return np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([(127 + 100 * np.sin(x / 9.0 + k) * np.cos(y / 7.0 - k)).astype(np.uint8) for k in range(3)], axis=-1)


@pytest.mark.parametrize('name', DICTIONARIES)
def test_dictionaries_have_as_many_characters_as_the_originals(name: str) -> None:
    assert len(DICTIONARIES[name].read()) + 1 == FACTS['dictionaries'][name]  # theirs counts the blank


@pytest.mark.parametrize('example', FACTS['encode'], ids=lambda example: f'{example["dict"]}-{example["text"][:12]}')
def test_texts_are_encoded_or_refused_as_in_the_original(example: dict[str, Any]) -> None:
    ours = characters(example)
    for encode, expected in ((ours.ctc, example['ctc'] and example['ctc']['label_nonpad']), (ours.sar, sar_of(example))):
        if expected is None:
            with pytest.raises(UnusableTextError):
                encode(example['text'])
        else:
            assert encode(example['text']) == expected


@pytest.mark.parametrize(('text', 'expected'), NRTR.items())
def test_texts_are_encoded_or_refused_for_nrtr_as_in_the_original(text: str, expected: list[int] | None) -> None:
    ours = DICTIONARIES['en_space'].read()
    if expected is None:
        with pytest.raises(UnusableTextError):
            ours.nrtr(text)
    else:
        assert ours.nrtr(text) == expected


def sar_of(example: dict[str, Any]) -> list[int] | None:
    return example['sar'] and example['sar']['label']


@pytest.mark.parametrize('example', FACTS['decode'], ids=lambda example: f'{example["dict"]}-{example["text"]}')
def test_outputs_are_read_as_in_the_original(example: dict[str, Any]) -> None:
    """Logits of which the stored class has the stored probability, and the rest is spread evenly over the others."""
    ours = characters(example)
    steps, classes = len(example['argmax']), len(ours) + 1
    top = torch.tensor(example['prob'], dtype=torch.float64)[:, None]
    probabilities = ((1 - top) / (classes - 1)).expand(steps, classes).clone()
    probabilities.scatter_(1, torch.tensor(example['argmax'])[:, None], top)
    (reading,) = ours.decode(probabilities.log()[None])
    assert reading.text == example['text']
    assert reading.confidence == pytest.approx(example['confidence'], rel=1e-5)


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('default', {}),
        ('ignore_space_false', {'ignore_space': False}),
        ('is_filter', {'alphanumeric_only': True}),
        ('is_filter_keep_space', {'alphanumeric_only': True, 'ignore_space': False}),
    ],
)
def test_metrics_are_those_of_the_original(name: str, options: dict[str, bool]) -> None:
    """The originals divide by the number of texts + 1e-5; ours by the number, so that all right is 1."""
    pairs, expected = FACTS['metric']['pairs_pred_target'], FACTS['metric'][name]['all']
    metric = ReadingAccuracy(**options)
    for pair in pairs:
        metric.update([Reading(pair[0], 1.0)], SimpleNamespace(labels=[pair[1]], unknown=[0], **NO_LINE))
    found, n = metric.compute(), len(pairs)
    assert found['accuracy'] == pytest.approx(expected['acc'] * (n + 1e-5) / n, rel=1e-9)
    assert 1 - found['edit_similarity'] == pytest.approx((1 - expected['norm_edit_dis']) * (n + 1e-5) / n, rel=1e-9)


@pytest.mark.parametrize('case', FACTS['resize'], ids=lambda case: case['out']['array_key'])
def test_lines_are_fitted_and_normalised_as_in_the_original(case: dict[str, Any]) -> None:
    """Images there are BGR, here RGB until the network takes them; what is stored is every third row and fifth column."""
    kwargs = case['kwargs']
    has_dictionary = 'character_dict_path' not in kwargs
    size = (case['image_shape'][1], case['image_shape'][2])
    shown, width = fitted_line(
        image(case['seed'], case['h'], case['w'], case['kind'])[..., ::-1],
        size,
        keep_ratio=kwargs.get('padding', True),
        grow=kwargs.get('eval_mode', False) or (kwargs.get('infer_mode', False) and has_dictionary),
    )
    images = torch.from_numpy(shown.transpose(2, 0, 1).copy())[None]
    none = torch.zeros(1, 25, dtype=torch.int64)
    texts = Texts(none, none[:, 0], none, torch.tensor([width / images.shape[3]]))
    task = Recognition(Recognition.Keys(model=partial(MODELS['crnn']), data=partial(SETS['digit_lines']), loss=(partial(CTC),)))
    found = task.network_input(RecognitionBatch(images, torch.tensor([width]), texts, ('',), (0,)))[0]
    assert list(found.shape) == case['out']['shape']
    assert_allclose(found[..., ::3, ::5], ARRAYS[case['out']['array_key']], atol=1e-6)
    assert float(found.double().sum()) == pytest.approx(case['out']['sum'], abs=2e-2)
    assert width / images.shape[3] == pytest.approx(case['valid_ratio'])


@pytest.mark.parametrize('case', FACTS['concatenate'], ids=lambda case: case['out']['array_key'])
def test_lines_are_put_behind_one_another_as_in_the_original(case: dict[str, Any]) -> None:
    lines = [(image(0, height, width), text) for height, width, text in (case['main'], *case['ext'])]
    found, text = Concatenate(image_size=(48, 320), max_length=25).joined(lines[0], lines[1:], lambda text: True)
    assert text == case['label']
    assert list(found.shape) == case['out']['shape']
    assert int(found.sum()) == case['out']['sum']
    assert_array_equal(found[::5, ::5], ARRAYS[case['out']['array_key']])
