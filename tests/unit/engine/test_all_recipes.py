"""Every shipped recipe, of every family: it binds, says what it is for, and has nothing in it that is never used.

Data folders are not there, as for `phalanx config`.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
import yaml

from phalanx.cli.main import main
from phalanx.config.read import load_yaml, to_plain
from phalanx.config.shipped import recipes_folder
from phalanx.engine.job import open_job
from phalanx.engine.optim.groups import parameter_groups
from phalanx.families.catalog import FAMILIES

FOLDERS = {folder.name: sorted(folder.glob('*.yml')) for folder in sorted(recipes_folder().iterdir())}
BASES = FOLDERS.pop('_base_')
RECIPES = [path for folder in FOLDERS.values() for path in folder]

# As the configurations are called in PaddleSeg 2.9, PaddleDetection 2.7 and PaddleOCR 2.7, and in the repositories of D-FINE,
# DEIMv2 and RT-DETR.
PUBLISHED = (
    *(f'pp_liteseg_stdc{size}_cityscapes_1024x512_scale{scale}_160k' for size in (1, 2) for scale in (0.5, 0.75, 1.0)),
    *(f'ocrnet_hrnetw{width}_cityscapes_1024x512_160k' for width in (18, 48)),
    *(f'segformer_b{size}_cityscapes_1024x1024_160k' for size in range(6)),
    *(f'deeplabv3p_resnet{layers}_os8_cityscapes_1024x512_80k' for layers in (50, 101)),
    'deeplabv3p_resnet101_os8_cityscapes_769x769_80k',
    'unet_cityscapes_1024x512_160k',
    *(f'ppyoloe_crn_{size}_300e_coco' for size in 'smlx'),
    *(f'ppyoloe_plus_crn_{size}_80e_coco' for size in 'smlx'),
    *(f'ppyoloe_plus_crn_{size}_60e_objects365' for size in 'smlx'),
    *(f'ppyoloe_plus_crn_{size}_30e_voc' for size in 'sl'),
    *(f'dfine_hgnetv2_{size}_{data}' for size in 'nsmlx' for data in ('coco', 'obj365', 'obj2coco')),
    *(f'deimv2_hgnetv2_{size}_coco' for size in ('atto', 'femto', 'pico', 'n')),
    *(f'rtdetr_{size}_6x_coco' for size in ('r18vd', 'r34vd', 'r50vd_m', 'r50vd', 'r101vd', 'hgnetv2_l', 'hgnetv2_x')),
    *(f'rtdetrv2_{size}_6x_coco' for size in ('r50vd', 'r101vd', 'hgnetv2_l', 'hgnetv2_x')),
    *(f'rtdetrv2_{name}_coco' for name in ('r18vd_120e', 'r34vd_120e', 'r50vd_m_7x')),
    *(f'rtdetrv2_{name}_coco' for name in ('r18vd_dsp_3x', 'r34vd_dsp_1x', 'r50vd_m_dsp_3x', 'r50vd_dsp_1x')),
    'rec_mv3_none_bilstm_ctc',
    'rec_chinese_lite_train_v2.0',
    'en_PP-OCRv3_rec',
    'ch_PP-OCRv3_rec',
    'ch_PP-OCRv3_rec_distillation',
    'ch_PP-OCRv4_rec',
    'en_PP-OCRv4_rec',
    'PP-OCRv5_mobile_rec',
    'SLANet',
    'det_mv3_db',
    'det_r50_vd_db',
    'ch_PP-OCRv3_det_student',
    'ch_PP-OCRv4_det_mobile',
)


def header(path: Path) -> dict[str, str]:
    """The entries `# key: text` of the comment that a recipe begins with; a text may go on in the lines below."""
    entries: dict[str, str] = {}
    key = ''
    for line in path.read_text().splitlines():
        if not line.startswith('#'):
            break
        name, colon, text = line[2:].partition(':')
        if colon and name in ('command', 'hardware', 'time', 'expected'):
            key = name
            entries[key] = text.strip()
        elif key:
            entries[key] += '\n' + line[2:].strip()
    return entries


def test_every_family_has_recipes_in_a_folder_of_its_name() -> None:
    assert FOLDERS.keys() == FAMILIES.keys()
    assert all(FOLDERS.values())


def test_a_name_means_one_recipe() -> None:
    assert len({path.stem for path in RECIPES}) == len(RECIPES)


def test_published_configurations_are_found_by_their_names() -> None:
    assert set(PUBLISHED) <= {path.stem for path in RECIPES}


@pytest.mark.parametrize('path', RECIPES, ids=lambda path: path.stem)
def test_a_recipe_binds_and_is_shown_as_one_json_object(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['config', path.stem, '--json']) == 0
    shown, errors = capsys.readouterr()
    assert errors == ''
    resolved = json.loads(shown)
    assert resolved['task'] == path.parent.name
    assert resolved['model']['name']


def test_rules_for_parameters_match_those_of_the_network(tmp_path: Path) -> None:
    """A pattern that matches nothing would end the run when it starts."""
    (tmp_path / 'dictionary.txt').write_text('a\nb\n')  # for those that a user brings
    seen = set[str]()
    for path in RECIPES:
        job = open_job(path.stem)
        model, parameters = (to_plain(job.resolved.value[key]) for key in ('model', 'parameters'))
        same = json.dumps([model['name'], parameters])  # sizes of one network have the same names
        if not job.recipe.parameters.rules or same in seen:
            continue
        seen.add(same)
        if job.recipe.task == 'recognition' and isinstance(job.task.dictionary.dictionary, Path):
            job = open_job(path.stem, [(f'characters.dictionary={tmp_path / "dictionary.txt"}', 'test')])
        if path.stem.endswith('_obj365'):
            job = open_job(path.stem, [('data.classes=[a, b]', 'test')])
        with torch.device('meta'):  # shapes alone
            network = job.task.model()
        groups = parameter_groups(network, job.recipe.parameters)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        assert sum(len(group['params']) for group in groups) == len(trained), path.stem
    assert seen


@pytest.mark.parametrize('path', RECIPES, ids=lambda path: path.stem)
def test_a_header_says_how_to_run_the_recipe_and_what_is_known_of_its_result(path: Path) -> None:
    """Time and result stand there where they were measured or published, and are left out where they were not."""
    entries = header(path)
    assert list(entries) == [key for key in ('command', 'hardware', 'time', 'expected') if key in entries]
    assert {'command', 'hardware'} <= entries.keys()
    assert all(entries.values())
    assert 'to be measured' not in ' '.join(entries.values())


@pytest.mark.parametrize('path', RECIPES, ids=lambda path: path.stem)
def test_the_command_of_a_header_is_that_of_the_recipe(path: Path) -> None:
    command, *others = header(path)['command'].replace('\\\n', '').splitlines()
    words = shlex.split(command)
    assert words[:3] == ['phalanx', 'train', path.stem]
    for line in others:  # what else it tells: the command of the evaluation, or settings to add
        assert 'phalanx ' not in line or f'runs/{path.stem}' in line
    if '--set' in words:
        job = open_job(path.stem, [(word, word) for word in words[words.index('--set') + 1 :]])
        assert job.name == path.stem


@pytest.mark.parametrize('path', [*BASES, *RECIPES], ids=lambda path: path.stem)
def test_every_anchor_is_used(path: Path) -> None:
    tokens = list(yaml.scan(path.read_text()))
    anchors = [token.value for token in tokens if isinstance(token, yaml.AnchorToken)]
    assert len(anchors) == len(set(anchors))
    assert set(anchors) == {token.value for token in tokens if isinstance(token, yaml.AliasToken)}


def test_every_base_is_used() -> None:
    named = set()
    for path in (*BASES, *RECIPES):
        bases = load_yaml(path).value.get('_base_')
        listed = [] if bases is None else bases.value if isinstance(bases.value, list) else [bases]
        named |= {(path.parent / base.value).resolve() for base in listed}
    assert {path.resolve() for path in BASES} <= named
