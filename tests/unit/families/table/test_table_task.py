"""The table Task: from samples to losses, predictions, pictures and files."""

from __future__ import annotations

import json
import pickle
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor, nn

from phalanx.config.bind import bind
from phalanx.config.read import read
from phalanx.data.samples import Draw
from phalanx.engine.schema import Recipe
from phalanx.families.table.data import DATA
from phalanx.families.table.draw import draw_grid
from phalanx.families.table.loss import LOSSES
from phalanx.families.table.models import MODELS
from phalanx.families.table.output import TableOutput
from phalanx.families.table.task import TableStructure
from phalanx.families.table.tree import build_tree
from phalanx.nn.backbones.pp_lcnet import pp_lcnet
from phalanx.parallel.step import WholeStep
from phalanx.runtime.results import Prediction
from phalanx.system.errors import RequestError

RECIPES = sorted((Path(__file__).parents[4] / 'recipes' / 'table').glob('*.yml'))
RENDERED = partial(DATA['rendered_tables'], train_tables=12, eval_tables=4)


def task(**changes: Any) -> TableStructure:
    options = {
        'model': partial(MODELS['slanet'], backbone=partial(pp_lcnet, scale=0.25), channels=16, hidden=16),
        'data': RENDERED,
        'loss': (partial(LOSSES['structure']), partial(LOSSES['smooth_l1'])),
        'image_size': 64,
        'max_length': 100,
    }
    return TableStructure(TableStructure.Keys(**(options | changes)))


class Knows(nn.Module):
    """Network that predicts given tables."""

    def __init__(self, ids: Tensor, boxes: Tensor) -> None:
        super().__init__()
        self.ids, self.boxes = ids, boxes

    def forward(self, images: Tensor, tokens: Tensor | None, max_steps: int) -> TableOutput:
        assert tokens is None
        return TableOutput(100.0 * nn.functional.one_hot(self.ids, 30), self.boxes)


@pytest.mark.parametrize('path', RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(path: Path) -> None:
    recipe, bound, _ = bind(read(path), Recipe, TableStructure)
    assert recipe.task == 'table'
    assert isinstance(bound.model(), nn.Module)
    assert pickle.dumps(bound)  # loader workers may be started afresh


def test_samples_are_squares_with_the_picture_in_the_corner() -> None:
    sample = task().dataset('train')[Draw(1, 0, 0, 0)]
    h, w = sample.fitted
    assert sample.image.shape == (3, 64, 64)
    assert sample.image.dtype == torch.uint8
    assert max(h, w) == 64
    assert sample.image[:, :h, :w].float().std() > 0
    assert not sample.image[:, h:].any()
    assert not sample.image[:, :, w:].any()


def test_tables_that_are_too_long_are_left_out_of_training_and_reported() -> None:
    source = RENDERED().split('train')
    lengths = source.lengths(task().vocabulary)
    limit = int(np.median(lengths))
    used = task(max_length=limit).dataset('train')
    assert len(used) == (lengths <= limit).sum() < 12
    assert used.name(0) == source.name(int(np.flatnonzero(lengths <= limit)[0]))
    note = f'{12 - len(used)} of 12 tables for training have more than max_length={limit} tokens and are left out'
    assert used.notes == (note,)
    assert task().dataset('train').notes == ()
    assert len(task(max_length=limit).dataset('eval')) == 4  # each is evaluated
    with pytest.raises(ValueError, match='each of the 12 tables for training has more than max_length=3 tokens'):
        task(max_length=3).dataset('train')


def test_a_network_that_predicts_the_truth_scores_one() -> None:
    table_task = task()
    samples = [table_task.dataset('eval')[Draw(number, 0, 0, 0)] for number in range(4)]
    batch = table_task.collate(samples)
    metric = table_task.metric()
    prediction = table_task.predict(Knows(batch.ids[:, 1:], batch.boxes[:, 1:]), batch)
    metric.update(prediction, batch)
    metric.gather()
    scores = metric.compute()
    assert [scores[name] for name in ('accuracy', 'teds', 'teds_structure', 'cell_recall')] == [1, 1, 1, 1]
    cells = np.concatenate([one.boxes[one.boxes.any(1)] for one in prediction])
    np.testing.assert_allclose(cells, np.concatenate([table.boxes for table in batch.truths]), rtol=1e-4)


def test_a_fixed_length_changes_the_shape_that_the_network_meets_and_no_loss() -> None:
    shapes, losses = [], []
    for fixed in (False, True):
        own = task(fixed_length=fixed, max_length=40)
        torch.manual_seed(0)
        model = own.model()
        model.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[1].shape))
        dataset = own.dataset('train')
        batch = own.align(own.collate([dataset[Draw(index, 0)] for index in range(2)]), WholeStep())
        losses.append(
            {name: term.mean().item() for name, term in own.loss(own.outputs(model, batch), batch, WholeStep()).items()}
        )
    assert shapes[0][1] < shapes[1][1] == 41
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_losses_reach_every_parameter() -> None:
    trained = task()
    model = trained.model().train()
    batch = trained.collate([trained.dataset('train')[Draw(number, 0, 0, 0)] for number in range(3)])
    terms = trained.loss(trained.outputs(model, batch), batch, WholeStep())
    steps = (
        max(len(trained.vocabulary.encode(table, size).ids) for table, size in zip(batch.truths, batch.sizes, strict=True)) - 1
    )
    assert terms['structure'].weight == 3 * steps
    assert terms['location'].weight == pytest.approx(sum(len(table.boxes) for table in batch.truths))
    torch.stack([term.total / term.weight for term in terms.values()]).sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_a_bare_image_goes_all_the_way_to_files(tmp_path: Path) -> None:
    table_task = task()
    image = table_task.dataset('eval').source.read(Draw(0))[0]
    batch = table_task.collate([table_task.request(image)])
    with torch.no_grad():
        (result,) = table_task.results(table_task.predict(table_task.model().eval(), batch), batch)
    files = table_task.writers.write(result, image, tmp_path / 'shot')
    assert [file.name for file in files] == ['shot.html', 'shot_cells.jpg', 'shot_page.html']
    assert all(file.stat().st_size for file in files)


def test_cells_are_listed_and_cropped(tmp_path: Path) -> None:
    """The second box lies outside the image, so it has no crop."""
    boxes = np.array([[1, 2, 11, 7], [70, 2, 80, 7]], np.float32)
    said = Prediction(('<tr>', '<td></td>', '<td></td>', '</tr>'), boxes, 0.5)
    listed, cut = task().writers.write(said, np.zeros((40, 60, 3), np.uint8), tmp_path / 'shot', ('json', 'crops'))
    record = json.loads(listed.read_text())
    assert (record['boxes'], record['score']) == (boxes.tolist(), 0.5)
    assert record['html'].count('<td></td>') == 2
    with PIL.Image.open(cut) as saved:
        assert (cut.name, saved.size) == ('shot_cell001.jpg', (10, 5))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith('on')]


def test_a_page_shows_the_image_and_the_table_and_runs_nothing(tmp_path: Path) -> None:
    said = Prediction(('<thead>', '<tr>', '<td', ' colspan="2"', '>', '</td>', '<script>'), np.zeros((1, 4), np.float32), 0.5)
    stem = tmp_path / '<script>alert(1)<'
    page = task().writers.write(said, np.full((40, 60, 3), 255, np.uint8), stem)[2].read_text()
    tags = Tags()
    tags.feed(page)
    assert {'img', 'table', 'thead', 'tr', 'td'} <= tags.tags
    assert 'script' not in tags.tags
    assert '<td colspan="2">1</td>' in page


def test_only_the_first_of_hundreds_of_rows_are_drawn() -> None:
    """Predictions of an untrained network must not fill the page: sixty rows and nine pixels around them."""
    table = build_tree(['<tbody>', *(['<tr>', '<td></td>', '</tr>'] * 300), '</tbody>'])
    assert draw_grid(table, 100).shape == (60 * 14 + 9, 100, 3)


def test_a_drawn_grid_has_a_line_for_every_row_and_column() -> None:
    """Two columns, 100 pixels wide: lines at both ends and in the middle, except in the cell over both columns."""
    table = build_tree(['<tr>', '<td></td>', '<td></td>', '</tr>', '<tr>', '<td', ' colspan="2"', '>', '</td>', '</tr>'])
    picture = draw_grid(table, 100)
    dark = picture.max(-1) < 200
    assert dark.all(1).sum() == 0
    assert dark[:, 4:96].all(1).sum() == 3
    assert np.flatnonzero(dark[10]).tolist() == [4, 50, 95]
    assert np.flatnonzero(dark[24]).tolist() == [4, 95]


def test_a_picture_shows_image_truth_and_prediction() -> None:
    table_task = task()
    sample = table_task.dataset('eval')[Draw(0, 0, 0, 0)]
    nothing = Prediction((), np.zeros((0, 4), np.float32), 0.0)
    pictures = table_task.picture(sample, nothing)
    assert [caption for caption, _ in pictures] == ['image', 'truth', 'prediction']
    assert {picture.shape[1] for _, picture in pictures} == {sample.fitted[1]}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'image_size': 16}, 'image_size must be at least 32'),
        ({'max_length': 0}, 'max_length at least 1'),
        ({'std': (0.1, 0.0, 0.1)}, 'std must be above 0'),
    ],
)
def test_invalid_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(**changes)


def test_places_of_cells_that_no_loss_teaches_are_not_shown(tmp_path: Path) -> None:
    """A weight of 0 for the boxes, as `phalanx new` writes it for tables without boxes."""
    table_task = task(loss_coefficients=(1.0, 0.0))
    image = table_task.dataset('eval').source.read(Draw(0))[0]
    batch = table_task.collate([table_task.request(image)])
    vocabulary = table_task.vocabulary.tokens
    numbers = torch.tensor([[vocabulary.index(token) for token in ('<tr>', '<td></td>', '</tr>', vocabulary[-1])]])
    knows = Knows(numbers, torch.full((1, 4, 4), 0.5))
    (result,) = table_task.predict(knows, batch)
    assert (result.structure, result.boxes) == (('<tr>', '<td></td>', '</tr>'), None)
    listed, cells, page = table_task.writers.write(result, image, tmp_path / 'shot', ('json', 'pictures'))
    assert json.loads(listed.read_text())['boxes'] is None
    with PIL.Image.open(cells) as drawn:
        assert np.abs(np.asarray(drawn).astype(int) - image).max() < 64  # JPEG's differences alone
    assert '1 cells' in page.read_text() and 'where they are was not learned' in page.read_text()
    with pytest.raises(RequestError, match="'crops' is not one of html, json, pictures"):
        table_task.writers.check(['crops'])
    metric = table_task.metric()
    metric.update([result], batch)
    assert np.isnan(metric.compute()['cell_recall'])


def test_texts_of_cells_are_in_their_files(tmp_path: Path) -> None:
    boxes = np.array([[1, 2, 11, 7], [20, 2, 30, 7]], np.float32)
    read = Prediction(('<tr>', '<td></td>', '<td></td>', '</tr>'), boxes, 0.5, ('a <b', '12'))
    image = np.zeros((40, 60, 3), np.uint8)
    html, listed, _, page = task().writers.write(read, image, tmp_path / 'shot', ('html', 'json', 'pictures'))
    assert '<tr><td>a &lt;b</td><td>12</td></tr>' in html.read_text()
    assert '<td>a &lt;b</td><td>12</td>' in page.read_text()
    assert json.loads(listed.read_text())['texts'] == ['a <b', '12']


def test_tokens_are_padded_to_the_longest_table_of_the_step() -> None:
    ours = task()
    samples = ours.dataset('train')
    batch = ours.collate([samples[Draw(number, 0, 0, 0)] for number in range(2)])
    assert ours.align(batch, WholeStep()).ids.shape == batch.ids.shape
