"""The recognition Task: from lines to losses, readings, pictures and files."""

import json
import math
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image
from torch import Tensor, nn

from phalanx.config.bind import bind
from phalanx.config.read import override, read
from phalanx.data.samples import Draw, SampleError
from phalanx.engine.optim.groups import parameter_groups
from phalanx.engine.schema import Recipe
from phalanx.families.distillation import DISTILLATIONS, DistillationModel, student_of
from phalanx.families.recognition.characters import Dictionary, Reading
from phalanx.families.recognition.data import DATA
from phalanx.families.recognition.loss import LOSSES
from phalanx.families.recognition.models import MODELS
from phalanx.families.recognition.models.outputs import Outputs, TextNetwork
from phalanx.families.recognition.task import Recognition, Sample
from phalanx.families.recognition.texts import Label, Texts
from phalanx.families.recognition.transforms import TRANSFORMS, Concatenate
from phalanx.nn.backbones.lcnetv3 import pp_lcnet_v3
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3
from phalanx.parallel.step import WholeStep

RECIPES = sorted((Path(__file__).parents[4] / 'recipes' / 'recognition').glob('*.yml'))
DIGITS = partial(DATA['digit_lines'], train_lines=6, eval_lines=3)
CRNN = partial(MODELS['crnn'], backbone=partial(mobilenet_v3, size='small'), hidden_size=8)
SVTR = partial(MODELS['svtr_lcnet'], neck_channels=16, hidden_size=16, sar_size=16, depth=1)
GUIDED = partial(MODELS['svtr_lcnetv3'], backbone=partial(pp_lcnet_v3, scale=0.35), nrtr_size=32, nrtr_depth=1)
CTC, MULTI = (partial(LOSSES['ctc']),), (partial(LOSSES['multi']),)
NRTR = (*CTC, partial(LOSSES['nrtr']))


def task(**changes: Any) -> Recognition:
    options = {'model': CRNN, 'data': DIGITS, 'loss': CTC, 'characters': Dictionary(dictionary='digits')}
    return Recognition(Recognition.Keys(**{**options, **changes}))


class Lines:
    """Data of given lines, the same for both splits."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def split(self, split: str) -> 'Lines':
        return self

    def __len__(self) -> int:
        return len(self.texts)

    def check_files(self) -> None:
        """Nothing is missing."""

    def name(self, index: int) -> str:
        return f'line {index}'

    def read(self, draw: Draw) -> tuple[np.ndarray, str]:
        if self.texts[draw.index] == 'bad':
            raise SampleError('bad')
        return np.full((32, 40, 3), 200, np.uint8), self.texts[draw.index]


class Reads12(TextNetwork):
    """Test network that reads '12' everywhere: blank, 1, 1, blank, 2."""

    def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
        path = torch.tensor([0, 2, 2, 0, 3])
        return Outputs(50 * nn.functional.one_hot(path, 11).float().expand(len(images), 5, 11))


@pytest.mark.parametrize('path', RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(path: Path, tmp_path: Path) -> None:
    """A small dictionary replaces the file that users bring to some recipes."""
    (tmp_path / 'dictionary.txt').write_text('a\nb\n')
    recipe, bound, _ = bind(read(path), Recipe, Recognition)
    if isinstance(bound.dictionary.dictionary, Path):
        root = override(read(path), f'characters.dictionary={tmp_path / "dictionary.txt"}', 'test')
        recipe, bound, _ = bind(root, Recipe, Recognition)
    assert recipe.task == 'recognition'
    parameter_groups(bound.model(), recipe.parameters)  # every rule matches something, no parameter two of them
    assert pickle.dumps(bound)  # loader workers may be started with spawn


def test_a_training_sample_is_augmented_and_a_function_of_its_draw() -> None:
    data = task(transforms=(partial(TRANSFORMS['rec_aug']),)).dataset('train')
    one, again, other = (data[Draw(1, epoch, 5, 0)] for epoch in (3, 3, 4))
    assert one.image.shape == (3, 32, 100) and one.image.dtype == torch.uint8
    assert torch.equal(one.image, again.image)
    assert not torch.equal(one.image, other.image)
    assert one.label.text == other.label.text and one.ctc == [int(digit) + 1 for digit in one.label.text]


def test_a_step_has_one_size_and_evaluation_always_the_same() -> None:
    ours = task(train_image_sizes=((32, 100), (32, 64), (32, 160)))
    train, evaluation = ours.dataset('train'), ours.dataset('eval')
    widths = [
        {train[Draw(index, epoch, step, 0)].image.shape[2] for index in range(3) for epoch in (0, 1)} for step in range(12)
    ]
    assert {len(step) for step in widths} == {1}
    assert {width for step in widths for width in step} == {64, 100, 160}
    assert {evaluation[Draw(0, 0, step, 0)].image.shape[2] for step in range(12)} == {100}


def test_lines_are_joined_with_readable_lines_only() -> None:
    concatenate = Concatenate(image_size=(32, 320), probability=1.0, lines=2)
    ours = task(data=lambda: Lines('1', '2', 'bad'), concatenate=concatenate)
    labels = {ours.dataset('train')[Draw(0, epoch, 0, 0)].label.text for epoch in range(60)}
    assert labels == {'1', '11', '12', '111', '112', '121', '122'}
    assert ours.dataset('eval')[Draw(0, 0, 0, 0)].label.text == '1'


def test_joined_lines_stay_short_enough_for_every_head() -> None:
    """Three lines have up to 36 characters together; the attention decoder takes 23."""
    lines = Lines(*('1' * (4 + index % 9) for index in range(2000)))
    concatenate = Concatenate(image_size=(48, 320), probability=1.0, lines=2)
    ours = task(data=lambda: lines, model=SVTR, loss=MULTI, image_size=(48, 64), concatenate=concatenate).dataset('train')
    lengths = [len(ours[Draw(index, 0, 0, 0)].label.text) for index in range(2000)]
    assert max(lengths) == 23
    assert sum(length > 12 for length in lengths) > 1000


def test_a_text_without_a_target_is_rejected_even_if_it_could_be_joined() -> None:
    ours = task(data=lambda: Lines('1', 'abc'), concatenate=Concatenate(image_size=(32, 320), probability=1.0)).dataset('train')
    for epoch in range(10):
        with pytest.raises(SampleError, match="'abc' has no character of the dictionary"):
            ours[Draw(1, epoch, 0, 0)]


@pytest.mark.parametrize('split', ['train', 'eval'])
def test_a_text_that_cannot_be_learned_raises_sample_error_with_the_reason(split: str) -> None:
    ours = task(data=lambda: Lines('1', 'abc', '1' * 26))
    with pytest.raises(SampleError, match=re.escape("line 1: 'abc' has no character of the dictionary")):
        ours.dataset(split)[Draw(1, 0, 0, 0)]


def test_a_text_too_long_to_learn_is_still_evaluated() -> None:
    ours = task(data=lambda: Lines('1' * 26), model=SVTR, loss=MULTI, image_size=(48, 160))
    with pytest.raises(SampleError, match=r'line 0: .* has 26 characters, more than max_length \(25\)'):
        ours.dataset('train')[Draw(0, 0, 0, 0)]
    assert ours.dataset('eval')[Draw(0, 0, 0, 0)].label.text == '1' * 26


def test_only_an_attention_head_rejects_texts_of_24_characters() -> None:
    lines, draw = (lambda: Lines('1' * 24)), Draw(0, 0, 0, 0)
    assert len(task(data=lines).dataset('train')[draw].ctc) == 24
    with pytest.raises(SampleError, match='more than the 23 that the attention decoder has room for'):
        task(data=lines, model=SVTR, loss=MULTI, image_size=(48, 160)).dataset('train')[draw]


def test_a_batch_contains_encoded_texts_and_valid_ratios() -> None:
    """The line of 40 x 32 fills 40 of 100 columns; digit d is d + 1 for CTC and d for the attention decoder."""
    ours = task(data=lambda: Lines('12x', '7'), model=SVTR, loss=MULTI)
    batch = ours.collate([ours.dataset('train')[Draw(index, 0, 0, 0)] for index in (0, 1)]).to(torch.device('cpu'))
    assert (len(batch), batch.truths) == (2, (('12', 1), ('7', 0)))
    assert batch.texts.ctc[:, :3].tolist() == [[2, 3, 0], [8, 0, 0]] and batch.texts.lengths.tolist() == [2, 1]
    assert batch.texts.guide[:, :5].tolist() == [[11, 1, 2, 11, 12], [11, 7, 11, 12, 12]]
    assert batch.texts.valid_ratios.tolist() == pytest.approx([0.4, 0.4])
    ours = task(data=lambda: Lines('12x', '7'), model=GUIDED, loss=NRTR)
    batch = ours.collate([ours.dataset('train')[Draw(index, 0, 0, 0)] for index in (0, 1)])
    assert batch.texts.guide[:, :5].tolist() == [[2, 5, 6, 3, 0], [2, 11, 3, 0, 0]]


def test_the_network_input_is_bgr_and_zero_behind_a_line() -> None:
    """(value / 255 - 0.5) / 0.5, by hand: 255 -> 1, 0 -> -1."""
    image = torch.zeros(3, 2, 5, dtype=torch.uint8)
    image[0] = 255  # red
    ours = task()
    found = ours.network_input(ours.collate([Sample(image, 3, Label('1'), [2], [])]))
    assert found.shape == (1, 3, 2, 5)
    assert found[0, :, 0, 0].tolist() == [-1, -1, 1]
    assert not found[..., 3:].any()


def test_an_unsupported_height_is_reported_when_the_network_is_built() -> None:
    for sizes in ({'image_size': (64, 128)}, {'image_size': (32, 128), 'train_image_sizes': ((32, 128), (64, 128))}):
        with pytest.raises(ValueError, match=r'^image_size: the network takes lines 17 to 48 pixels high, got 64$'):
            task(**sizes).model()


def test_images_of_different_sizes_cannot_be_collated() -> None:
    samples = [Sample(torch.zeros(3, 2, width, dtype=torch.uint8), width, Label('1'), [2], []) for width in (4, 5)]
    with pytest.raises(ValueError, match='the images of a batch differ in size: 4 x 2, 5 x 2'):
        task().collate(samples)


def test_the_loss_is_computed_from_the_texts_of_the_batch() -> None:
    """Logits of zero: '1' in 1 time step of 11 classes has probability 1/11, so the CTC loss of each text is ln 11."""

    class Zeros(TextNetwork):
        def forward(self, images: Tensor, texts: Texts | None = None) -> Outputs:
            return Outputs(images.new_zeros(len(images), 1, 11))

    ours = task(data=lambda: Lines('1', '2'))
    batch = ours.collate([ours.dataset('train')[Draw(index, 0, 0, 0)] for index in (0, 1)])
    ((name, term),) = ours.loss(ours.outputs(Zeros(), batch), batch, WholeStep()).items()
    assert name == 'ctc'
    assert float(term.total / term.weight) == pytest.approx(math.log(11))
    assert float(term.weight) == 2


def test_readings_come_with_confidence_and_are_evaluated() -> None:
    ours = task(data=lambda: Lines('12', '1'))
    batch, metric = ours.collate([ours.dataset('eval')[Draw(index, 0, 0, 0)] for index in (0, 1)]), ours.metric()
    prediction = ours.predict(Reads12(), batch)
    assert ours.results(prediction, batch) == prediction
    assert [reading.text for reading in prediction] == ['12', '12']
    assert prediction[0].confidence == pytest.approx(1.0)
    metric.update(prediction, batch)
    assert metric.compute()['accuracy'] == 0.5


def test_a_long_line_widens_the_input_in_prediction() -> None:
    ours = task()
    batch = ours.collate([ours.request(np.zeros((16, 200, 3), np.uint8))])
    assert batch.images.shape == (1, 3, 32, 400)
    assert ours.predict(Reads12(), batch)[0].text == '12'


def test_the_caption_of_a_picture_gives_truth_and_reading() -> None:
    ours = task(data=lambda: Lines('12'))
    ((caption, picture),) = ours.picture(ours.dataset('eval')[Draw(0, 0, 0, 0)], Reading('17', 0.876))
    assert caption == '12 - read 17 (0.88): wrong'
    assert picture.shape == (32, 40, 3)
    assert_array_equal(picture, 200)


@pytest.mark.parametrize('text', ['17', '中文', ''])
def test_a_result_is_saved_as_text_json_and_picture(tmp_path: Path, text: str) -> None:
    files = task().writers.write(Reading(text, 0.5), np.zeros((32, 40, 3), np.uint8), tmp_path / 'line.0001')
    assert [file.name for file in files] == ['line.0001.txt', 'line.0001.json', 'line.0001_read.png']
    assert files[0].read_text(encoding='utf-8') == text + '\n'
    assert json.loads(files[1].read_text(encoding='utf-8')) == {'text': text, 'confidence': 0.5}
    with Image.open(files[2]) as saved:
        assert saved.size[1] == 32 + 28


def test_a_survey_counts_characters_and_reports_texts_that_cannot_be_learned() -> None:
    survey = task(data=lambda: Lines('1 21', 'abc'), characters=Dictionary(dictionary='digits', space=True)).survey('train')
    image, counts = survey.count(0)
    assert (len(survey), survey.name(1), image.shape) == (2, 'line 1', (32, 40, 3))
    assert counts == {'1': 2, '2': 1, '␣': 1}
    assert survey.picture(0).shape[0] == 32 + 28
    with pytest.raises(SampleError, match="line 1: 'abc' has no character of the dictionary"):
        survey.count(1)


def test_a_survey_counts_characters_that_are_not_in_the_dictionary() -> None:
    assert task(data=lambda: Lines('1ab')).survey('eval').count(0)[1] == {
        '1': 1,
        '(not in the dictionary) a': 1,
        '(not in the dictionary) b': 1,
    }


def distilling(**changes: Any) -> Recognition:
    return task(
        **{
            'model': SVTR,
            'loss': MULTI,
            'image_size': (48, 160),
            'networks': {'teacher': SVTR},
            'between': (partial(DISTILLATIONS['dml'], output='ctc'), partial(DISTILLATIONS['feature_distance'])),
            **changes,
        }
    )


def test_each_network_of_mutual_learning_has_its_own_losses() -> None:
    ours = distilling()
    model = ours.model().train()
    batch = ours.collate([ours.dataset('train')[Draw(index, 0, 0, 0)] for index in (0, 1)])
    outputs = ours.outputs(model, batch)
    terms = ours.loss(outputs, batch, WholeStep())
    assert terms['ctc_teacher'] == ours.supervised_loss(outputs['teacher'], batch, WholeStep())['ctc']
    assert set(terms) == {
        *('ctc_student', 'sar_student', 'ctc_teacher', 'sar_teacher'),
        *('dml_ctc_student_teacher', 'distance_features_student_teacher'),
    }
    sum(term.total / term.weight for term in terms.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_frozen_teacher_has_no_losses_and_the_student_predicts() -> None:
    ours = distilling(frozen=('teacher',))
    model = ours.model().train()
    batch = ours.collate([ours.dataset('train')[Draw(index, 0, 0, 0)] for index in (0, 1)])
    assert not [
        name for name in ours.loss(ours.outputs(model, batch), batch, WholeStep()) if name in ('ctc_teacher', 'sar_teacher')
    ]
    with torch.no_grad():
        assert len(ours.predict(model.eval(), batch)) == 2


def test_the_student_is_exported() -> None:
    ours = distilling()
    model = ours.model().eval()
    assert isinstance(model, DistillationModel)
    network = ours.export(student_of(model)).network
    assert {id(weight) for weight in network.parameters()} == {id(weight) for weight in model.student.parameters()}
    images = torch.zeros(1, 3, 48, 160)
    torch.testing.assert_close(network(images), model.student(images).ctc, rtol=0, atol=0)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'image_size': (0, 32)}, 'image_size is (height, width) in pixels, each at least 1; got 0, 32'),
        ({'train_image_sizes': ((32, 0),)}, 'train_image_sizes is (height, width) in pixels, each at least 1; got 32, 0'),
        ({'networks': {'teacher': CRNN}}, 'distillation needs both'),
        ({'networks': {'student': CRNN}}, "'student' is the name of `model`"),
    ],
)
def test_invalid_options_are_rejected_before_the_network_is_built(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        task(**changes)


@pytest.mark.parametrize(
    ('model', 'loss', 'message'),
    [
        (CRNN, MULTI, 'which has the heads ctc; it trains ctc and sar; use ctc'),
        (SVTR, CTC, 'which has the heads ctc and sar; it trains ctc; use sar or multi'),
        (GUIDED, CTC, r'which has the heads ctc and nrtr; it trains ctc; use \[ctc, nrtr\]'),
        (GUIDED, NRTR[1:], r'which has the heads ctc and nrtr; it trains nrtr; use \[ctc, nrtr\]'),
    ],
)
def test_a_loss_that_does_not_fit_the_network_is_rejected(model: Any, loss: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f'loss: does not fit the network, {message}'):
        task(model=model, loss=loss).model()


def test_a_missing_dictionary_is_reported_when_the_network_is_built() -> None:
    with pytest.raises(FileNotFoundError, match=re.escape('none.txt: no such dictionary file')):
        task(characters=Dictionary(dictionary=Path('none.txt'))).model()


def test_texts_too_long_for_the_width_are_reported_before_training(tmp_path: Path) -> None:
    """CRNN has a time step per four columns, 10 for 40; `11111` and six more digits need 15, ten different ones just 10."""
    Image.fromarray(np.zeros((32, 40, 3), np.uint8)).save(tmp_path / '0.png')
    texts = ('1', '0123456789', '11111012345', '2')
    for split in ('train', 'test'):
        (tmp_path / f'rec_gt_{split}.txt').write_text(''.join(f'0.png\t{text}\n' for text in texts))
    options = {'data': partial(DATA['label_files'], root=tmp_path), 'image_size': (32, 40)}
    assert task(**options).dataset('train').notes == (
        'train data: 1 of 4 texts (25%) are too long for the width of 40, so nothing is learned from them; '
        'the longest needs image_size: [32, 64]',
    )
    assert not task(**options).dataset('eval').notes
    assert not task(**{**options, 'image_size': (32, 64)}).dataset('train').notes
