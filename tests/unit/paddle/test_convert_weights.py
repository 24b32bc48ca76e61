"""Weights from files into a network. Original names and shapes are those of PaddleSeg's PP-LiteSeg and its STDC backbone."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch
import yaml
from torch import nn

from phalanx.config.read import read, to_plain
from phalanx.config.shipped import shipped_recipes
from phalanx.families.detection.models.ppyoloe import PPYOLOE, ppyoloe
from phalanx.families.distillation import DistillationModel
from phalanx.families.segmentation.models.pp_liteseg import pp_liteseg
from phalanx.families.segmentation.models.segformer import segformer
from phalanx.families.segmentation.models.unet import unet
from phalanx.paddle.weights import original_of, paddle_layout
from phalanx.system.errors import CheckpointError
from phalanx.weights.published import PUBLISHED
from phalanx.weights.reading import compare_weights, load_weights, namings

Arrays = dict[str, npt.NDArray[np.float32]]
FIRST = 'backbone.features.0.conv.weight'  # of the network's first convolution, [32, 3, 3, 3]
HEAD = 'seg_heads.0.conv_out.weight'  # of its classifier, [classes, 32, 1, 1]


@pytest.fixture(scope='module')
def network() -> nn.Module:
    return pp_liteseg(3)


@pytest.fixture
def model(network: nn.Module) -> Iterator[nn.Module]:
    """A network that every test finds as drawn."""
    drawn = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    yield network
    network.load_state_dict(drawn)


@pytest.fixture
def arrays(model: nn.Module) -> Arrays:
    """Random arrays for all of `model`, by original name."""
    rng = np.random.default_rng(0)
    name = original_of(model).name
    return {name(ours): rng.random(tensor.shape, dtype=np.float32) for ours, tensor in paddle_layout(model).items()}


def saved(path: Path, arrays: Arrays) -> Path:
    path.write_bytes(pickle.dumps(arrays, 4))
    return path


def first(model: nn.Module) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = model.state_dict()['backbone.stages.0.conv.weight'].numpy().copy()
    return array


def head(model: nn.Module) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = model.state_dict()['heads.0.classify.weight'].numpy().copy()
    return array


def test_a_file_of_the_original_fills_the_whole_network(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    assert load_weights(model, saved(tmp_path / 'model.pdparams', arrays)).notes == []
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    np.testing.assert_array_equal(head(model), arrays[HEAD])


def test_a_file_of_ours_fills_the_whole_network(tmp_path: Path, model: nn.Module) -> None:
    state = {name: torch.full_like(tensor, 2) for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(state, tmp_path / 'model.safetensors')
    assert load_weights(model, tmp_path / 'model.safetensors').notes == []
    assert (first(model) == 2).all() and (head(model) == 2).all()


def test_a_file_of_a_backbone_alone_leaves_the_rest_as_initialised(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    """Published backbones are classifiers: their names have no `backbone.`, and they bring a head."""
    backbone = {name.removeprefix('backbone.'): array for name, array in arrays.items() if name.startswith('backbone.')}
    path = saved(tmp_path / 'stdc.pdparams', {**backbone, 'fc.weight': np.zeros((4, 2), np.float32)})
    drawn = head(model)
    assert load_weights(model, path, part='backbone').notes == [
        f'{path}: 1 tensor is left over, without a place in the network: fc.weight'
    ]
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    np.testing.assert_array_equal(head(model), drawn)


def test_the_backbone_of_a_whole_network_can_be_taken_alone(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    drawn = head(model)
    load_weights(model, saved(tmp_path / 'model.pdparams', arrays), part='backbone')
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    np.testing.assert_array_equal(head(model), drawn)


def test_a_backbone_that_is_not_whole_is_refused(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    del arrays[FIRST]
    drawn = first(model)
    with pytest.raises(CheckpointError, match=r'missing: backbone\.features\.0\.conv\.weight \[32, 3, 3, 3\]'):
        load_weights(model, saved(tmp_path / 'stdc.pdparams', arrays), part='backbone')
    np.testing.assert_array_equal(first(model), drawn)


def test_a_network_without_a_backbone_has_none_to_fill(tmp_path: Path) -> None:
    path = saved(tmp_path / 'stdc.pdparams', {'features.0.conv.weight': np.zeros((32, 3, 3, 3), np.float32)})
    with pytest.raises(CheckpointError, match='the network has no part of that name'):
        load_weights(unet(2), path, part='backbone')


def test_a_head_for_other_classes_stays_as_initialised_unless_everything_must_fit(
    tmp_path: Path, model: nn.Module, arrays: Arrays
) -> None:
    arrays[HEAD] = np.zeros((19, 32, 1, 1), np.float32)
    path, drawn = saved(tmp_path / 'model.pdparams', arrays), head(model)
    with pytest.raises(CheckpointError, match=r'misshapen: seg_heads\.0\.conv_out\.weight is \[19, 32, 1, 1\]'):
        load_weights(model, path)
    shapes = f'{HEAD} is [19, 32, 1, 1], the model has [3, 32, 1, 1]'
    taken = load_weights(model, path, misshapen='skip')
    assert taken.notes == [f'{path}: 1 tensor is of another shape and stays as initialised: {shapes}']
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    np.testing.assert_array_equal(head(model), drawn)


def test_what_fits_is_taken_and_the_rest_is_counted_by_part(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    """The part `heads` has 3 heads of 5 arrays for a convolution with its norm and 1 for the classifier."""
    del arrays[FIRST]
    arrays[HEAD] = np.zeros((19, 32, 1, 1), np.float32)
    drawn = first(model)
    taken = load_weights(model, saved(tmp_path / 'a.pdparams', {**arrays, 'x': np.zeros(1)}), misshapen='skip')
    rows = {row['part']: list(row.values())[1:] for row in taken.rows()}
    backbone = sum(name.startswith('backbone.') for name in arrays)
    assert rows['backbone'] == [backbone, 0, 1, 0, 0]
    assert rows['heads'] == [17, 0, 0, 1, 0]
    assert rows['(no place here)'] == [0, 0, 0, 0, 1]
    np.testing.assert_array_equal(first(model), drawn)


def test_weights_of_another_network_are_reported_as_such(tmp_path: Path, model: nn.Module) -> None:
    safetensors.torch.save_file(unet(3).state_dict(), tmp_path / 'unet.safetensors')
    drawn = first(model)
    with pytest.raises(CheckpointError, match='these are weights of another network: of the 247 tensors of PPLiteSeg 247 are'):
        load_weights(model, tmp_path / 'unet.safetensors', misshapen='skip')
    np.testing.assert_array_equal(first(model), drawn)


def test_another_size_of_the_network_is_named_as_such(tmp_path: Path) -> None:
    safetensors.torch.save_file(ppyoloe(2, size='s').state_dict(), tmp_path / 's.safetensors')
    with pytest.raises(CheckpointError, match=r'is it another size of the network\? backbone\.stem\.0\.conv\.weight is \[16,'):
        load_weights(ppyoloe(2, size='m'), tmp_path / 's.safetensors', misshapen='skip')


def test_a_backbone_alone_is_recognised_where_a_whole_network_is_needed(tmp_path: Path) -> None:
    small = SmallBackbone()
    safetensors.torch.save_file(small.backbone.state_dict(), tmp_path / 'backbone.safetensors')
    with pytest.raises(CheckpointError, match=r'its backbone fits: add train\.init_part=backbone'):
        load_weights(small, tmp_path / 'backbone.safetensors', misshapen='skip')


def test_a_network_without_an_original_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='there is no conversion for Linear'):
        load_weights(nn.Linear(1, 1), saved(tmp_path / 'model.pdparams', {'w': np.zeros(1, np.float32)}))


def test_names_that_do_not_fit_are_a_checkpoint_error(tmp_path: Path, model: nn.Module) -> None:
    safetensors.torch.save_file({'other': torch.zeros(1)}, tmp_path / 'model.safetensors')
    with pytest.raises(CheckpointError, match=r'another network.*the file has other, the network backbone\.stages\.0\.conv'):
        load_weights(model, tmp_path / 'model.safetensors')


class SmallBackbone(nn.Module):
    """A network most of whose tensors are not part of its backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(2, 2)
        self.rest = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))


# Files of PyTorch and numpy.


def renamed(model: nn.Module, pattern: str, value: float = 2) -> dict[str, torch.Tensor]:
    """The state of `model` full of `value`; in `pattern`, `*` is a name, `<` what is before its last part, `>` that part."""
    found = {}
    for name, tensor in model.state_dict().items():
        head, _, tail = name.rpartition('.')
        found[pattern.replace('*', name).replace('<', head).replace('>', tail)] = torch.full_like(tensor, value)
    return found


PATTERNS = ('module.*', '_orig_mod.module.*', 'module._orig_mod.*', '_forward_module.model.*', 'model.net.module.*')


@pytest.mark.parametrize('pattern', [*PATTERNS, '<._orig_mod.>', 'model.<._fsdp_wrapped_module.>'])
@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_prefixes_of_wrappers_are_left_out_in_any_order(tmp_path: Path, model: nn.Module, pattern: str, suffix: str) -> None:
    state, path = renamed(model, pattern), tmp_path / f'model{suffix}'
    torch.save(state, path) if suffix == '.pth' else safetensors.torch.save_file(state, path)
    assert load_weights(model, path).notes == []
    assert (first(model) == 2).all()


EMA, TRAINED = 2, 3
EMAS: dict[str, Callable[[nn.Module], Any]] = {
    'timm': lambda model: {'state_dict': renamed(model, '*', TRAINED), 'state_dict_ema': renamed(model, '*', EMA)},
    'torchvision': lambda model: {
        'model': renamed(model, '*', TRAINED),
        'model_ema': {'n_averaged': torch.tensor(3), **renamed(model, 'module.*', EMA)},
    },
    'rt_detr': lambda model: {'model': renamed(model, '*', TRAINED), 'ema': {'module': renamed(model, '*', EMA), 'updates': 9}},
    'lightning': lambda model: {'state_dict': renamed(model, 'model.*', TRAINED) | renamed(model, 'model_ema.module.*', EMA)},
}


@pytest.mark.parametrize('script', EMAS)
def test_of_weights_and_their_ema_the_ema_is_loaded_with_a_hint_for_the_others(
    tmp_path: Path, model: nn.Module, script: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save(EMAS[script](model), tmp_path / 'model.pth')
    taken = load_weights(model, tmp_path / 'model.pth')
    assert (first(model) == EMA).all()
    taken.announce()
    (remark,) = caplog.messages
    assert 'the EMA' in remark
    key = remark.rpartition('#key=')[2].split()[0]
    assert load_weights(model, f'{tmp_path / "model.pth"}#key={key}').notes == []
    assert (first(model) == TRAINED).all()


def test_an_average_without_names_is_skipped_with_a_note(tmp_path: Path, model: nn.Module) -> None:
    shadow = {'shadow_params': [torch.zeros(2)], 'decay': 0.9}
    torch.save({'epoch': 3, 'model': {'state_dict': renamed(model, '*')}, 'ema': shadow}, tmp_path / 'model.pth')
    (note,) = load_weights(model, tmp_path / 'model.pth').notes
    assert note.endswith('`ema` has no tensors by name; using `model`')


def test_a_key_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, model: nn.Module) -> None:
    torch.save(renamed(model, 'net.*'), tmp_path / 'model.pth')
    with pytest.raises(CheckpointError, match=r"has no entry 'nets'; its names begin with net$"):
        load_weights(model, f'{tmp_path / "model.pth"}#key=nets')


def test_a_file_of_pytorch_with_the_names_of_the_original_is_laid_out_as_torch_does(tmp_path: Path) -> None:
    """Paddle's linear layers are [in, out]: in a square one nobody would see the difference by its shape."""
    model = segformer(2)
    state = model.state_dict()
    name = next(name for name, tensor in state.items() if tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1])
    slots = namings(model, paddles=False)[1].slots
    torch.save({theirs: slot.tensor for theirs, slot in slots.items()}, tmp_path / 'model.pth')
    other = segformer(2)
    load_weights(other, tmp_path / 'model.pth', misshapen='skip')
    assert torch.equal(other.state_dict()[name], state[name])


def test_a_file_of_pytorch_that_would_run_code_is_refused(tmp_path: Path, model: nn.Module) -> None:
    torch.save({'model': model}, tmp_path / 'model.pt')
    with pytest.raises(CheckpointError, match='holds more than weights, which is not read because it could execute code'):
        load_weights(model, tmp_path / 'model.pt')


def test_arrays_of_numpy_by_original_name_fill_a_network(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    np.savez(tmp_path / 'model.npz', **arrays)  # type: ignore[arg-type]
    assert load_weights(model, tmp_path / 'model.npz').notes == []
    np.testing.assert_array_equal(first(model), arrays[FIRST])


def test_a_damaged_zip_archive_of_any_compression_is_named(tmp_path: Path, model: nn.Module) -> None:
    for kind in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / 'net.zip', 'w', kind) as archive:
            archive.writestr('model.pth', bytes(range(256)) * 50)
        content = bytearray((tmp_path / 'net.zip').read_bytes())
        content[60:120] = bytes(60)
        (tmp_path / 'net.zip').write_bytes(content)
        with pytest.raises(CheckpointError, match='is not a complete zip archive'):
            load_weights(model, tmp_path / 'net.zip')


def test_the_file_of_weights_in_a_zip_archive_is_read(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    with zipfile.ZipFile(tmp_path / 'net.zip', 'w') as archive:
        archive.writestr('../../net/README.md', 'x')
        archive.writestr('../../net/model.pdparams', pickle.dumps(arrays, 4))
        archive.writestr('net/other.pdparams', b'')
    with pytest.raises(CheckpointError, match=r'must hold one file of weights, holds .*; choose one with .*#file=NAME'):
        load_weights(model, tmp_path / 'net.zip')
    with pytest.raises(CheckpointError, match=r'must hold the file best.pth, holds .*net/model.pdparams, net/other.pdparams;'):
        load_weights(model, f'{tmp_path}/net.zip#file=best.pth')
    assert load_weights(model, f'{tmp_path}/net.zip#file=model.pdparams').notes == []
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    assert [path.name for path in tmp_path.iterdir()] == ['net.zip']


def test_a_zip_bomb_is_refused(tmp_path: Path, model: nn.Module) -> None:
    with zipfile.ZipFile(tmp_path / 'net.zip', 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('model.pdparams', bytes(80 << 20))
    with pytest.raises(CheckpointError, match='weights do not compress that well'):
        load_weights(model, tmp_path / 'net.zip')


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('m.pdparams', b'version https://git-lfs.github.com/spec/v1\noid sha256:1', 'is a Git LFS pointer .* `git lfs pull`'),
        ('m.safetensors', b'version https://git-lfs.github.com/spec/v1\noid sha256:1', 'is a Git LFS pointer'),
        ('m.pdopt', pickle.dumps({'moment': np.zeros(2)}, 4), 'the state of an optimizer; the weights are in the .pdparams'),
        ('m.pdiparams', bytes(600), 'exported inference model.*give the .pdparams of its training'),
        ('m.pdparams', b'\n <!DOCTYPE html><html>', 'is a web page, not weights'),
        ('m.xml', b'<?xml version="1.0"?><net/>', 'is an exported network; give the weights that it was exported from'),
        ('m.pt', b'nothing', 'is not a file of torch.save'),
        ('m.npz', b'PK\x03\x04', 'is not a complete'),
    ],
)
def test_a_file_without_weights_is_reported_with_the_fix(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_weights(nn.Linear(1, 1), tmp_path / name)


# The chains that recipes name: Objects365 -> COCO -> VOC, ImageNet -> the rest.

CLASSES = {'Objects365': 365, 'COCO': 80}


@cache
def empty(num_classes: int, **options: Any) -> PPYOLOE:
    with torch.device('meta'):
        return ppyoloe(num_classes, **options)


@cache
def shapes_of(num_classes: int, **options: Any) -> dict[str, torch.Tensor]:
    """Shapes of the arrays in a file of PaddleDetection."""
    return {name: slot.tensor for name, slot in namings(empty(num_classes, **options))[1].slots.items()}


# What stands in a head for weights that have no name: a run, a file of the user, an address.
OTHER_PLACES = ('RUN', 'FILE', 'runs', 'HGNETV2_FILE', 'https')


def recipes_with_published_weights() -> list[tuple[str, str]]:
    heads = {name: path.read_text() for name, path in shipped_recipes().items()}
    found = {name: re.search(r'train\.init_from=(\w+)', head) for name, head in heads.items()}
    named = [(name, match[1]) for name, match in found.items() if match and match[1] not in OTHER_PLACES]
    # Those of detectors with queries: golden/test_detector_names.
    return [(recipe, name) for recipe, name in named if PUBLISHED[name].network.startswith('ppyoloe')]


@pytest.mark.parametrize(('recipe', 'name'), recipes_with_published_weights())
def test_a_recipe_can_start_from_the_weights_that_its_head_names(recipe: str, name: str) -> None:
    """Compared by name and shape, without numbers: what the larger networks would hold is half a gigabyte."""
    published = PUBLISHED[name]
    source = yaml.safe_load(f'{{name: {published.network}}}')
    options = to_plain(read(shipped_recipes()[recipe]).value['model'])
    assert (options['name'], options['size']) == (source.pop('name'), source['size'])
    del options['name']
    file = shapes_of(CLASSES.get(published.trained_on, 1), **source)
    if published.part == 'backbone':
        file = {name.removeprefix('backbone.'): tensor for name, tensor in file.items() if name.startswith('backbone.')}
    fit = compare_weights(empty(20, **options), file, published.part)
    assert fit.share > 0.9
    assert {name.rpartition('.')[2] for name in fit.missing} <= {'alpha'}
    assert all('pred_cls' in name for name in fit.misshapen) and not fit.left_over


def test_pp_yoloe_plus_starts_from_pp_yoloe(tmp_path: Path) -> None:
    """Objects365 was trained without the factors `alpha`, which then begin at 1; the head is for other classes."""
    theirs, ours = ppyoloe(5), ppyoloe(3, plus=True)
    arrays = {name: slot.tensor.detach().numpy() for name, slot in namings(theirs)[1].slots.items()}
    taken = load_weights(ours, saved(tmp_path / 'objects365.pdparams', arrays), misshapen='skip')
    assert torch.equal(ours.neck.finer[0].conv.weight, theirs.neck.finer[0].conv.weight)
    assert ours.backbone.stages[0][1].blocks[0].second.alpha == 1
    missing, misshapen = taken.notes
    assert 'stay as initialised: backbone.stages.0.blocks.0.conv2.alpha, ' in missing
    assert '6 tensors are of another shape' in misshapen and 'yolo_head.pred_cls.0.weight is [5, 384, 3, 3]' in misshapen


def distillation() -> DistillationModel:
    return DistillationModel({name: pp_liteseg(3) for name in ('student', 'teacher')})


def both(arrays: Arrays) -> Arrays:
    """A distillation as PaddleOCR publishes it: the networks one after the other, here a teacher that is twice the student."""
    teacher = {f'Teacher.{name}': 2 * array for name, array in arrays.items()}
    return {**teacher, **{f'Student.{name}': array for name, array in arrays.items()}}


def test_a_file_of_a_distillation_fills_all_its_networks(tmp_path: Path, arrays: Arrays) -> None:
    model = distillation()
    load_weights(model, saved(tmp_path / 'both.pdparams', both(arrays)))
    np.testing.assert_array_equal(first(model.networks['student']), arrays[FIRST])
    np.testing.assert_array_equal(first(model.networks['teacher']), 2 * arrays[FIRST])


def test_a_network_takes_the_student_from_the_file_of_a_distillation(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    load_weights(model, saved(tmp_path / 'both.pdparams', both(arrays)))
    np.testing.assert_array_equal(first(model), arrays[FIRST])


def test_one_network_of_a_distillation_starts_from_weights_of_its_own(tmp_path: Path, model: nn.Module) -> None:
    safetensors.torch.save_file(model.state_dict(), tmp_path / 'taught.safetensors')
    distilled = distillation()
    drawn = first(distilled.student)
    assert load_weights(distilled, tmp_path / 'taught.safetensors', network='teacher').notes == []
    np.testing.assert_array_equal(first(distilled.networks['teacher']), first(model))
    np.testing.assert_array_equal(first(distilled.student), drawn)
    with pytest.raises(CheckpointError, match=r"there is no network 'tutor'; the distillation has student, teacher$"):
        load_weights(distilled, tmp_path / 'taught.safetensors', network='tutor')
    with pytest.raises(CheckpointError, match=r"there is no network 'teacher'; the distillation has none: it is not one$"):
        load_weights(model, tmp_path / 'taught.safetensors', network='teacher')


def test_a_network_that_the_file_has_not_is_reported(tmp_path: Path, arrays: Arrays) -> None:
    path = saved(tmp_path / 'student.pdparams', {f'Student.{name}': array for name, array in arrays.items()})
    with pytest.raises(CheckpointError, match="the weights have no network 'Teacher'; their names start with Student"):
        load_weights(distillation(), path)
