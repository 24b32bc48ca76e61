"""The detection Task: from samples to losses, boxes, pictures and files."""

import json
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from torch import Tensor, nn

from phalanx.config.bind import bind
from phalanx.config.read import read
from phalanx.data.image import palette
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.engine.loader import Stream
from phalanx.engine.schema import Recipe
from phalanx.families.detection.data import DATA, Objects
from phalanx.families.detection.decode import REACH, Raw
from phalanx.families.detection.draw import IGNORED, Found, draw_boxes, draw_objects, find_place
from phalanx.families.detection.loss import LOSSES
from phalanx.families.detection.metric import METRICS
from phalanx.families.detection.models import MODELS
from phalanx.families.detection.models.ppyoloe import PPYOLOE
from phalanx.families.detection.task import Detection, Nms, Sample, Samples, pad_to_common_size
from phalanx.families.detection.transforms import TRANSFORMS
from phalanx.families.sizing import sizing_of
from phalanx.parallel.step import WholeStep

BINS = REACH[1] - REACH[0] + 1

RECIPES = sorted((Path(__file__).parents[4] / 'recipes' / 'detection').glob('ppyoloe*.yml'))
DIGITS = partial(DATA['digit_scenes'], train_scenes=7, eval_scenes=3, size=(48, 64), digit_height=(12, 20))
PARTS = {'model': partial(MODELS['ppyoloe']), 'loss': (partial(LOSSES['task_aligned']),), 'metric': partial(METRICS['coco'])}


def task(**changes: Any) -> Detection:
    return Detection(Detection.Keys(**{**PARTS, 'data': DIGITS, **changes}))


class Finds(nn.Module):
    """A network for tests that finds the same on every image: class 3 in `box` (pixels of the input), sure by 0.88."""

    def __init__(self, box: tuple[float, ...]) -> None:
        super().__init__()
        self.box = box

    def forward(self, images: Tensor) -> Raw:
        """One anchor of stride 8 whose sides are whole bins away: a distribution with all its weight on one bin."""
        x0, y0, x1, y1 = self.box
        point = ((x0 + x1) / 2, (y0 + y1) / 2)
        bins = torch.tensor([point[0] - x0, point[1] - y0, x1 - point[0], y1 - point[1]]) / 8
        distances = torch.nn.functional.one_hot(bins.long(), BINS).float() * 1000
        logits = torch.full((len(images), 1, 10), -9.0)
        logits[:, :, 3] = 2.0
        strides = torch.tensor([8.0])
        return Raw(logits, distances.flatten().expand(len(images), 1, -1), torch.tensor([point]), strides, (1,))

    decode = PPYOLOE.decode  # it asks nothing of the network


class Scenes:
    """A data set for tests: images of two sizes, with a crowd, a box that reaches out, one outside, and none at all."""

    notes: dict[str, int] = {}  # noqa: RUF012

    def __len__(self) -> int:
        return 2

    def check_files(self) -> None:
        """Nothing is missing."""

    def name(self, index: int) -> str:
        return f'scene {index}'

    def read(self, draw: Draw) -> tuple[np.ndarray, Objects]:
        if draw.index == 1:
            return np.zeros((30, 90, 3), np.uint8), Objects.none()
        boxes = np.array([[10, 5, 30, 25], [50, -10, 200, 20], [90, 0, 99, 9], [0, 0, 80, 40]], np.float32)
        objects = Objects.plain(boxes, np.array([3, 1, 2, 0]))
        return np.full((40, 80, 3), 200, np.uint8), Objects(boxes, objects.classes, np.arange(4) == 3, objects.areas)


@pytest.mark.parametrize('path', RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(path: Path) -> None:
    recipe, bound, _ = bind(read(path), Recipe, Detection)
    assert recipe.task == 'detection'
    assert pickle.dumps(bound)  # loader workers may be started afresh
    # The classes of these stand in the files of a user's data.
    if path.stem != 'ppyoloe_plus_s' and 'obj365' not in path.stem and 'objects365' not in path.stem:
        with torch.device('meta'):
            assert isinstance(bound.model(), nn.Module)


def test_published_recipes_have_80_classes_of_coco() -> None:
    _, bound, _ = bind(read(next(path for path in RECIPES if path.stem == 'ppyoloe_crn_s_300e_coco')), Recipe, Detection)
    assert (len(bound.class_names), bound.class_names[0], bound.class_names[79]) == (80, 'person', 'toothbrush')


def test_training_samples_are_a_function_of_their_draw() -> None:
    names = ('mosaic', 'mix_up', 'random_distort', 'random_expand', 'random_crop', 'random_flip')
    resize = partial(TRANSFORMS['batch_random_resize'], sizes=(32, 64, 96))
    data = task(transforms=(*(partial(TRANSFORMS[name]) for name in names), resize)).dataset('train')
    one, again, other = (data[Draw(1, epoch, 5, 0)] for epoch in (3, 3, 4))
    assert torch.equal(one.image, again.image) and (one.objects.boxes == again.objects.boxes).all()
    assert not torch.equal(one.image, other.image)
    assert (one.index, one.image.dtype) == (1, torch.uint8)
    assert one.image.shape == other.image.shape  # the size belongs to the step


def test_augmentation_changes_at_the_epochs_of_the_recipe() -> None:
    """Mosaics in epoch 1, other sizes up to epoch 2, then one size: whatever the order in which the samples are asked for."""
    limited = (
        TRANSFORMS['mosaic'](target_size=(96, 96), start_epoch=1, stop_epoch=2),
        TRANSFORMS['resize'](target_size=(64, 64)),
        TRANSFORMS['batch_random_resize'](sizes=(128,), interpolation='nearest', stop_epoch=2),
    )
    data = Samples(Scenes(), limited, 'train')
    draws = [Draw(index, epoch) for epoch in range(4) for index in range(2)]
    samples = {draw: data[draw] for draw in draws}
    assert [samples[draw].image.shape[1] for draw in draws] == [128] * 4 + [64] * 4
    counts = [len(samples[draw].objects) for draw in draws]
    alone = [len(Samples(Scenes(), (), 'train')[draw].objects) for draw in draws]
    assert counts[:2] == alone[:2] and counts[4:] == alone[4:] and counts[2:4] != alone[2:4]
    for draw in reversed(draws):
        assert torch.equal(data[draw].image, samples[draw].image)


@pytest.mark.parametrize(('probability', 'expands'), [(1.0, False), (0.0, True)])
def test_what_skips_mosaics_leaves_them_alone(probability: float, expands: bool) -> None:
    mosaic = TRANSFORMS['mosaic'](target_size=(96, 96), probability=probability)
    expand = TRANSFORMS['random_expand'](probability=1.0, skips_mosaics=True)
    with_expansion, without = (Samples(Scenes(), parts, 'train') for parts in ((mosaic, expand), (mosaic,)))
    differs = [with_expansion[Draw(i)].image.shape != without[Draw(i)].image.shape for i in range(2)]
    assert any(differs) == expands


def test_a_training_that_ends_before_its_augmentation_changes_is_warned_of_by_key() -> None:
    """Of trial runs that is no fault, and a transform may stop with the training."""
    names, limits = ('random_flip', 'random_distort', 'resize'), ({}, {'stop_epoch': 148}, {'target_size': (64, 64)})
    found = task(transforms=tuple(partial(TRANSFORMS[name], **own) for name, own in zip(names, limits, strict=True)))
    expected = 'the training ends after 20 epochs, before transforms.1.stop_epoch=148; lower these with train.epochs'
    assert [found.notes(epochs) for epochs in (160, 148, 20, 0.5)] == [[], [], [expected], []]
    found = task(loss=(partial(LOSSES['task_aligned'], static_assigner_epochs=30),))
    assert [len(found.notes(epochs)) for epochs in (80, 20)] == [0, 1]
    assert 'before static_assigner_epochs=30 (of the loss, or assigner.static_epochs)' in found.notes(20)[0]


@pytest.mark.parametrize(
    ('limits', 'expected'),
    [
        ([{}, {}], 'one a step'),
        ([{}, {'stop_epoch': 3}], 'one a step'),
        ([{'start_epoch': 3}, {'stop_epoch': 3}], 'kept'),  # together they cover all epochs, which is not worth a calculation
        ([{'stop_epoch': 3}], 'kept'),
    ],
)
def test_sizes_of_images_hold_for_every_epoch(limits: list[dict[str, int]], expected: str) -> None:
    options: list[dict[str, Any]] = [{'target_size': (64, 64)}, {'sizes': (64, 96)}]
    names = ('resize', 'batch_random_resize')
    parts = zip(names, options, limits, strict=False)
    assert sizing_of([TRANSFORMS[name](**own, **limit) for name, own, limit in parts]) == expected


def test_crowds_and_what_is_outside_are_not_trained_on_but_evaluated() -> None:
    learnt = Samples(Scenes(), (), 'train')[Draw(0, 0, 0, 0)].objects
    assert learnt.boxes.tolist() == [[10, 5, 30, 25], [50, 0, 80, 20]]
    assert learnt.classes.tolist() == [3, 1]
    objects = Samples(Scenes(), (), 'eval')[Draw(0, 0, 0, 0)].objects
    assert objects.boxes[1].tolist() == [50, -10, 200, 20]  # as annotated, as COCO's own tool judges
    assert objects.ignored.tolist() == [False, False, False, True]


def test_evaluation_compares_boxes_of_the_original_image() -> None:
    data = task(eval_transforms=(partial(TRANSFORMS['resize'], target_size=(32, 96)),)).dataset('eval')
    sample = data[Draw(0, 0, 0, 0)]
    assert sample.image.shape == (3, 32, 96) and sample.size == (48, 64)
    assert_array_equal(sample.objects.boxes, DIGITS().split('eval').read(Draw(0))[1].boxes)
    assert sample.frame.tolist() == [0, 0, 96, 32]


def batch_of(data: Samples, ours: Detection) -> Any:
    return ours.collate([data[Draw(index, 4 + index, 9, 0)] for index in range(len(data))])


def test_a_batch_holds_flat_boxes_and_pads_to_the_stride() -> None:
    """Images of 80 x 40 and 90 x 30 fit into 96 x 64; what is filled up has the mean colour."""
    ours = task(mean=(0.5, 0.4, 1.0))
    batch = batch_of(Samples(Scenes(), (), 'train'), ours)
    assert (len(batch), batch.images.shape, [len(boxes) for boxes in batch.per_image()[0]]) == (2, (2, 3, 64, 96), [2, 0])
    assert batch.boxes.shape == (2, 4) and batch.classes.tolist() == [3, 1]
    assert (batch.indices, batch.sizes) == ((0, 1), ((40, 80), (30, 90)))
    assert batch.images[0, :, 39, 79].tolist() == [200] * 3
    assert batch.images[0, :, 40, 0].tolist() == batch.images[1, :, 0, 90].tolist() == [128, 102, 255]
    moved = batch.to(torch.device('cpu'))
    assert [len(truth) for truth in moved.truths] == [2, 0]
    assert moved.truths[0].boxes.tolist() == batch.boxes.tolist()


def test_images_of_one_good_size_are_stacked_as_they_are() -> None:
    images = [torch.randint(0, 255, (3, 32, 64), dtype=torch.uint8) for _ in range(3)]
    assert torch.equal(pad_to_common_size(images, (0, 0, 0)), torch.stack(images))


@pytest.mark.parametrize(
    ('transform', 'box', 'expected'),
    [
        ((), (16, 8, 32, 24), (16, 8, 32, 24)),
        (
            ('resize', {'target_size': (160, 160)}),
            (32, 32, 64, 96),
            (16, 8, 32, 24),
        ),  # 80 x 40: twice as wide, four times as high
        (('resize', {'target_size': (160, 160), 'keep_ratio': True}), (32, 16, 64, 48), (16, 8, 32, 24)),
        (('random_expand', {'probability': 1.0}), None, (16, 8, 32, 24)),  # wherever the image lies
    ],
)
def test_boxes_are_found_in_pixels_of_the_original_image(transform: Any, box: Any, expected: tuple[float, ...]) -> None:
    transforms = (partial(TRANSFORMS[transform[0]], **transform[1]),) if transform else ()
    ours = task(eval_transforms=transforms)
    sample = Samples(Scenes(), ours.transforms['eval'], 'eval')[Draw(0, 0, 0, 0)]
    if box is None:
        left, top = sample.frame[:2].tolist()
        box = (left + 16, top + 8, left + 32, top + 24)
    (found,) = ours.predict(Finds(box), ours.collate([sample]))
    assert_allclose(found.boxes, [expected], atol=1e-3)
    assert found.classes.tolist() == [3]
    assert_allclose(found.scores, [1 / (1 + np.exp(-2))], rtol=1e-6)


def test_results_have_names_and_lie_in_the_image() -> None:
    ours = task()
    batch = ours.collate([ours.request(np.zeros((40, 80, 3), np.uint8))])
    (result,) = ours.results(ours.predict(Finds((64, 16, 96, 48)), batch), batch)
    assert [(one.name, one.label, one.box) for one in result] == [('3', 3, (64, 16, 80, 40))]


def test_what_is_improbable_is_no_result() -> None:
    ours = task(nms=Nms(score_threshold=0.9))
    batch = ours.collate([ours.request(np.zeros((40, 80, 3), np.uint8))])
    assert ours.results(ours.predict(Finds((64, 16, 96, 48)), batch), batch) == [[]]


def test_the_metric_evaluates_what_was_found() -> None:
    """One of two images has a class 3, at (10, 5, 30, 25); (8, 8, 24, 24) has an IoU of 14 x 16 / (400 + 256 - 224) = 0.52.

    That is enough for one of the ten thresholds. Of equal scores that of the first sample comes first, and it is right.
    """
    ours = task()
    metric, data = ours.metric(), Samples(Scenes(), (), 'eval')
    for index in (1, 0):
        batch = ours.collate([data[Draw(index, 0, 0, 0)]])
        metric.update(ours.predict(Finds((8, 8, 24, 24)), batch), batch)
    metric.gather()
    (row,) = (row for row in metric.table() if row['class'] == '3')
    assert row['objects'] == 1
    assert (row['ap50'], row['ap']) == (pytest.approx(1), pytest.approx(0.1))


def test_losses_reach_every_parameter_also_without_a_box() -> None:
    torch.manual_seed(0)
    ours = task()
    model = ours.model()
    empty = ours.collate([Samples(Scenes(), (), 'train')[Draw(1, 0, 0, 0)]])
    terms = ours.loss(ours.outputs(model, empty), empty, WholeStep())
    assert list(terms) == ['cls', 'iou', 'dfl']
    sum(term.total / term.weight.clamp(min=1) for term in terms.values()).backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_an_uneven_cut_holds_the_same_samples() -> None:
    """A global batch of 5 on 3 ranks is 2, 2 and 1: together the images and boxes that one rank has."""
    names = ('random_expand', 'random_crop', 'random_flip')
    resize = partial(TRANSFORMS['batch_random_resize'], sizes=(32, 64, 96))
    ours = task(transforms=(*(partial(TRANSFORMS[name]) for name in names), resize))
    data = ours.dataset('train')

    def parts(step: int, ranks: int) -> list[Any]:
        shares = [Stream(len(data), 5, 1, 0, rank, ranks).share(step) for rank in range(ranks)]
        return [ours.collate([data[draw] for draw in share]) for share in shares]

    for step in range(3):  # epochs of 7 samples end within steps
        (whole,), cut = parts(step, 1), parts(step, 3)
        assert [len(part) for part in cut] == [2, 2, 1]
        for name in ('images', 'boxes', 'classes'):
            assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in cut])), name


def test_a_picture_is_truth_and_prediction_at_the_original_size() -> None:
    ours = task()
    sample = Samples(Scenes(), (TRANSFORMS['resize'](target_size=(32, 32)),), 'eval')[Draw(0, 0, 0, 0)]
    sure, unsure = (Found('7', 7, score, (40, 10, 60, 30)) for score in (0.9, 0.1))
    rows = ours.picture(sample, [unsure])
    assert [caption for caption, _ in rows] == ['truth', 'prediction']
    assert {picture.shape for _, picture in rows} == {(40, 80, 3)}
    assert (rows[1][1] == 200).all()  # below `shown_from`
    assert_array_equal(ours.picture(sample, [sure])[1][1][20, 40], palette(8)[7])


def test_a_box_is_drawn_around_its_pixels_in_its_colour() -> None:
    image = np.zeros((40, 40, 3), np.uint8)
    picture = draw_boxes(image, [(10, 20, 30, 35)], [''], [(9, 8, 7)])
    rows, columns = np.nonzero(picture.any(2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 34, 10, 29)
    assert set(map(tuple, picture[picture.any(2)].tolist())) == {(9, 8, 7)}
    assert not picture[21:34, 11:29].any() and not image.any()


def test_what_is_not_evaluated_is_grey() -> None:
    picture = draw_objects(*Scenes().read(Draw(0)), tuple('0123456789'))
    assert_array_equal(picture[39, 40], IGNORED)


def test_a_result_is_saved_as_a_list_and_as_an_overlay(tmp_path: Path) -> None:
    found = [Found('cät', 0, 0.75, (1.5, 2.0, 20.0, 30.0)), Found('dog', 1, 0.1, (0.0, 0.0, 9.0, 9.0))]
    files = task().writers.write(found, np.zeros((40, 60, 3), np.uint8), tmp_path / 'frame.0001')
    assert [file.name for file in files] == ['frame.0001.json', 'frame.0001_overlay.jpg']
    listed = json.loads(files[0].read_text())
    assert listed[0] == {'name': 'cät', 'label': 0, 'score': 0.75, 'box': [1.5, 2.0, 20.0, 30.0]}
    assert [one['name'] for one in listed] == ['cät', 'dog']
    with Image.open(files[1]) as saved:
        assert saved.size == (60, 40)


def test_objects_are_written_as_yolo_has_them_and_cut_out(tmp_path: Path) -> None:
    """By hand, on an image 60 wide and 40 high: the box 0..30 x 10..20 has its centre at 15, 15 and is 30 x 10."""
    image = np.zeros((40, 60, 3), np.uint8)
    image[10:20, :30] = 200
    found = [Found('traffic/light', 3, 0.5, (0.0, 10.0, 30.0, 20.0)), Found('dog', 1, 0.1, (0.0, 0.0, 9.0, 9.0))]
    listed, cut = task(shown_from=0.4).writers.write(found, image, tmp_path / 'street', ('txt', 'crops'))
    assert listed.read_text() == '3 0.250000 0.375000 0.500000 0.250000 0.500000\n'
    assert cut.name == 'street_01_traffic_light.jpg'
    with Image.open(cut) as saved:
        assert saved.size == (30, 10)
        assert np.abs(np.array(saved).astype(int) - 200).max() <= 3


def test_a_survey_counts_boxes() -> None:
    survey = task().survey('train')
    image, counts = survey.count(0)
    assert (survey.unit, len(survey), image.shape) == ('boxes', 7, (48, 64, 3))
    assert sum(counts[name] for name in '0123456789' if name in counts) == len(DIGITS().split('train').read(Draw(0))[1])
    assert survey.picture(0).shape == (48, 64, 3)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'eval_transforms': (partial(TRANSFORMS['resize'], target_size=(32, 96), stop_epoch=3),)},
            'eval_transforms: start_epoch and stop_epoch are for training',
        ),
        ({'std': (0.5, 0.0, 0.5)}, 'std must be above 0, got 0.5, 0.0, 0.5'),
        (
            {'metric': partial(METRICS['voc']), 'main_metric': 'ap50'},
            "main_metric: 'ap50' is not one of mean_ap, the values of this metric",
        ),
        ({'metric': partial(METRICS['voc'], iou=2.0)}, 'iou must lie between 0 and 1, got 2.0'),
        ({'transforms': (partial(TRANSFORMS['resize'], target_size=(1, 0)),)}, 'target_size is (height, width)'),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_built(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        task(**changes)


def test_thresholds_are_shares() -> None:
    with pytest.raises(ValueError, match='nms_threshold must lie between 0 and 1, got 70'):
        Nms(nms_threshold=70)
    with pytest.raises(ValueError, match='keep_top_k must be at least 1, got 0'):
        Nms(keep_top_k=0)


def test_a_sample_travels_between_processes() -> None:
    sample = pickle.loads(pickle.dumps(task().dataset('eval')[Draw(0, 0, 0, 0)]))  # noqa: S301 - our own
    assert isinstance(sample, Sample) and sample.size == (48, 64)


def test_captions_of_neighbours_do_not_cover_each_other() -> None:
    """At the upper edge there is no room above the boxes; the third caption has no place left in a box of its own size."""
    size, taken = (100, 200), list[tuple[float, float, float, float]]()
    for box in ((10, 0, 90, 60), (14, 2, 96, 66), (12, 1, 40, 12)):
        if place := find_place(box, 50, 11, size, taken):
            taken.append((*place, place[0] + 50, place[1] + 11))
    assert taken == [(10, 0, 60, 11), (14, 55, 64, 66), (12, 12, 62, 23)]
    assert find_place((10, 0, 90, 11), 50, 11, (20, 200), taken) is None


@pytest.mark.parametrize(
    ('model', 'loss', 'cure'), [('dfine', 'task_aligned', 'rtdetr or dfine'), ('ppyoloe', 'dfine', 'task_aligned')]
)
def test_a_loss_for_another_kind_of_network_is_refused(model: str, loss: str, cure: str) -> None:
    job = open_job('ppyoloe_digits', [(word, word) for word in (f'model={{name: {model}}}', f'loss={{name: {loss}}}')])
    with pytest.raises(ValueError, match=f'loss: is for .* use .*{cure}'):
        job.task.model()


def test_a_batch_without_objects_has_a_loss_of_classes_alone() -> None:
    """A rank may have only images without objects; D-FINE then has no distances to compare."""
    keys = 'model={name: dfine, queries: 12, decoder_layers: 2, denoising: 4}', 'loss=[dfine]'
    own, whole = open_job('ppyoloe_digits', [(key, key) for key in keys]).task, WholeStep()
    assert isinstance(own, Detection)
    nothing = Sample(torch.zeros(3, 64, 64, dtype=torch.uint8), Objects.none(), 0, (64, 64), torch.zeros(4))
    batch = own.align(own.collate([nothing]), whole)
    terms = {name: term.total.item() for name, term in own.loss(own.outputs(own.model().train(), batch), batch, whole).items()}
    assert terms.pop('cls') > 0 and terms.pop('ddf') >= 0  # distillation among all queries
    assert terms.pop('denoising') >= 0
    assert terms == {'l1': 0, 'giou': 0, 'fgl': 0}
