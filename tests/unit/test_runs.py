"""Run folders: what their recipes hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.config.read import ConfigError
from phalanx.config.show import show
from phalanx.recognition.task import Recognition
from phalanx.runs import differences, open_job, settled
from phalanx.segmentation.task import Segmentation

LENGTH = 'train: {steps: 1, global_batch_size: 1}\n'


def kept(recipe: Path) -> Path:
    """A run folder of the recipe, as a start leaves it."""
    folder = recipe.parent / 'run'
    folder.mkdir()
    (folder / 'config.yml').write_text(show(settled(open_job(str(recipe)))), encoding='utf-8')
    return folder


def test_a_run_folder_holds_the_names_of_classes_that_a_file_of_the_data_set_says(tmp_path: Path) -> None:
    """So that it predicts where the data set is not; and the same recipe still goes on in it."""
    (tmp_path / 'classes.txt').write_text('sky\nStraße: "nass"\n', encoding='utf-8')
    recipe = tmp_path / 'mine.yml'
    recipe.write_text(f'_base_: pp_liteseg\ndata: {{name: file_list, root: {tmp_path}}}\n{LENGTH}')
    folder = kept(recipe)
    assert differences(open_job(str(recipe), folder=folder)) == []
    (tmp_path / 'classes.txt').write_text('sky\nroad\n')
    assert [line.split(':')[0] for line in differences(open_job(str(recipe), folder=folder))] == ['data.classes']
    (tmp_path / 'classes.txt').unlink()
    task = open_job(str(folder)).task
    assert isinstance(task, Segmentation)
    assert task.metric().class_names == ('sky', 'Straße: "nass"')


def test_a_run_folder_holds_the_characters_of_a_dictionary_file(tmp_path: Path) -> None:
    """Among them what YAML would take for a number, for nothing, or for a comment."""
    characters = ('1', '~', '#', ' ', '"', '\\', '漢', '\u3000', '😀')
    (tmp_path / 'dict.txt').write_text('\n'.join(characters) + '\n', encoding='utf-8')
    recipe = tmp_path / 'mine.yml'
    data = f'data: {{name: label_files, root: {tmp_path}}}\ncharacters: {{dictionary: {tmp_path}/dict.txt}}\n'
    recipe.write_text(f'_base_: crnn\n{data}{LENGTH}')
    folder = kept(recipe)
    (tmp_path / 'dict.txt').unlink()
    task = open_job(str(folder)).task
    assert isinstance(task, Recognition)
    assert task.characters.characters == characters


@pytest.mark.parametrize(
    ('name', 'told'),
    [
        ('pp_litseg_digits', "did you mean 'pp_liteseg_digits'?"),
        ('none.yml', '(`phalanx config` lists them)'),
        ('.', 'is a folder without config.yml, so no run folder'),
    ],
)
def test_a_recipe_that_is_not_there_is_told_with_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        open_job(name)
    assert told in str(caught.value)
