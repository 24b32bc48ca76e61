"""`phalanx data check`: a small data set with every fault that it looks for, put there by hand."""

import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import phalanx.cli.main as cli
from phalanx.curation.census import Census, Problem, SplitCensus, spread_evenly, take_census
from phalanx.curation.tables import duplicate_rows, size_rows
from phalanx.engine.job import open_job
from phalanx.families.detection.survey import AMBIGUOUS, SMALL, TWICE
from phalanx.families.recognition.survey import ctc_steps_needed
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.survey import PixelSurvey
from running import run_here

CLASSES = ('sky', 'road', 'car')


def picture(seed: int, height: int = 4, width: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def labels(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.uint8)


class Tree:
    """A data set in files, of pairs that are put in one by one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lines: dict[str, list[str]] = {'train': [], 'val': []}
        (root / 'images').mkdir(parents=True)
        (root / 'labels').mkdir()

    def put(self, split: str, name: str, image: np.ndarray | bytes, truth: np.ndarray) -> None:
        path = self.root / f'images/{name}.png'
        path.write_bytes(image) if isinstance(image, bytes) else Image.fromarray(image).save(path)
        Image.fromarray(truth).save(self.root / f'labels/{name}.png')
        self.lines[split].append(f'images/{name}.png labels/{name}.png\n')
        for known, lines in self.lines.items():
            (self.root / f'{known}.txt').write_text(''.join(lines))

    def words(self) -> list[str]:
        """The recipe of the data set, as words of a command."""
        data = f'data={{name: file_list, root: {self.root}, classes: [{", ".join(CLASSES)}]}}'
        more = ('transforms=[{name: resize, target_size: [8, 8]}]', 'loss=[cross_entropy, cross_entropy, cross_entropy]')
        return ['pp_liteseg_digits', '--set', data, *more, 'train.global_batch_size=3', '--workers', '0']


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Three sound pairs for training and one for evaluation."""
    monkeypatch.chdir(tmp_path)
    tree = Tree(tmp_path / 'data')
    tree.put('train', 'a', picture(0), labels(*[[0, 0, 0, 1, 1, VOID]] * 4))
    tree.put('train', 'b', picture(1), labels(*[[0] * 6] * 4))
    tree.put('train', 'c', picture(2, 2, 8), labels(*[[1] * 8] * 2))
    tree.put('val', 'd', picture(3), labels(*[[2] * 6] * 4))
    return tree


@pytest.fixture
def check(tree: Tree, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict]]:
    """Runs the command and gives its exit status and what it printed as JSON."""

    def run(*more: str) -> tuple[int, dict]:
        status = cli.main(['data', 'check', *tree.words(), '--json', *more])
        return status, json.loads(capsys.readouterr().out)

    return run


def test_pixels_and_images_of_each_class_are_counted(check: Callable[..., tuple[int, dict]]) -> None:
    """By hand: a has 3 columns of sky, 2 of road, 1 void, each 4 high; b is sky, c is 2 x 8 of road, d is car."""
    status, found = check()
    assert (status, found['problems'], found['duplicates'], found['unit']) == (0, [], [], 'pixels')
    assert found['samples'] == {'train': {'all': 3, 'read': 3}, 'eval': {'all': 1, 'read': 1}}
    none = {'pixels': 0, 'images': 0}
    assert found['classes'] == [
        {'class': 'sky', 'train': {'pixels': 12 + 24, 'images': 2}, 'eval': none},
        {'class': 'road', 'train': {'pixels': 8 + 16, 'images': 2}, 'eval': none},
        {'class': 'car', 'train': none, 'eval': {'pixels': 24, 'images': 1}},
        {'class': '(void)', 'train': {'pixels': 4, 'images': 1}, 'eval': none},
    ]
    assert found['sizes']['train'] == [{'width': 6, 'height': 4, 'samples': 2}, {'width': 8, 'height': 2, 'samples': 1}]
    assert found['remarks'] == [
        'never in the training samples: car (6% of the pixels are (void)); `phalanx new` and `phalanx data prepare '
        'masks` turn masks with the values 0 and 255 into classes',
        'never in the evaluation samples, so not evaluated: sky, road',
    ]


def test_every_fault_is_found_and_fails_the_check(tree: Tree, check: Callable[..., tuple[int, dict]]) -> None:
    tree.put('train', 'broken', b'no picture', labels(*[[0] * 6] * 4))
    tree.put('train', 'small', picture(4), labels(*[[0] * 6] * 2))
    tree.put('train', 'wrong', picture(5), labels(*[[0, 0, 9, 9, 0, 0]] * 4))
    tree.put('val', 'wrong2', picture(6), labels(*[[9] * 6] * 4))
    status, found = check()
    assert status == 1
    assert found['samples'] == {'train': {'all': 6, 'read': 3}, 'eval': {'all': 2, 'read': 1}}
    names = [(problem['split'], Path(problem['sample']).stem) for problem in found['problems']]
    assert names == [('train', 'broken'), ('train', 'small'), ('train', 'wrong'), ('eval', 'wrong2')]
    wanted = [
        'is not an image',
        'is 6 x 2 pixels, but its image is 6 x 4',
        'pixels of value 9; allowed are 0 to 2',
        'of value 9',
    ]
    for words, problem in zip(wanted, found['problems'], strict=True):
        assert words in problem['problem']


def test_values_of_more_than_8_bits_are_reported(tree: Tree, check: Callable[..., tuple[int, dict]]) -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 6), 4095, np.uint16)).save(file, 'PNG')
    tree.put('train', 'deep', file.getvalue(), labels(*[[2] * 6] * 4))
    status, found = check()
    assert (status, found['remarks'][0]) == (
        0,
        'train: 1 image has values of 12 bits; the upper 8 are used; data.bands uses all',
    )


def test_images_that_exif_data_turn_are_counted(tree: Tree, check: Callable[..., tuple[int, dict]]) -> None:
    """A photograph stored 4 wide and 6 high, shown 6 wide and 4 high; its label map is that of the picture as shown."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 8
    Image.fromarray(picture(7, 6, 4)).save(file, 'JPEG', exif=exif)
    tree.put('train', 'turned', file.getvalue(), labels(*[[2] * 6] * 4))
    status, found = check()
    assert (status, found['remarks'][0]) == (0, 'train: 1 image is turned by EXIF data; annotate them upright')


def test_a_damaged_jpeg_is_found(tree: Tree, check: Callable[..., tuple[int, dict]]) -> None:
    file = io.BytesIO()
    Image.fromarray(picture(7, 64, 64)).save(file, 'JPEG')
    tree.put('train', 'damaged', file.getvalue()[:1500] + b'\xff\xd9', labels(*[[2] * 64] * 64))
    status, found = check()
    assert (status, len(found['problems'])) == (1, 1)
    assert 'damaged.png: is damaged: ' in found['problems'][0]['problem']


def test_equal_images_are_found_within_and_between_splits(tree: Tree, check: Callable[..., tuple[int, dict]]) -> None:
    """Equal are pixels, not files: one copy is a BMP file under the name of a PNG. The labels of a and a2 differ."""
    tree.put('train', 'a2', picture(0), labels(*[[0] * 6] * 4))
    Image.fromarray(picture(0)).save(tree.root / 'images/a2.png', 'BMP')
    tree.put('val', 'b2', picture(1), labels(*[[0] * 6] * 4))
    status, found = check()
    groups = [[(each['split'], Path(each['sample']).stem) for each in group] for group in found['duplicates']]
    assert (status, groups) == (0, [[('train', 'a'), ('train', 'a2')], [('train', 'b'), ('eval', 'b2')]])
    assert found['remarks'][2:] == [
        'images both among the training and the evaluation samples: 1',
        'images several times within a split: 1',
        f'equal images with different annotations: 1, such as {tree.root}/images/a.png and {tree.root}/images/a2.png',
    ]


def test_a_split_that_cannot_be_opened_is_a_problem_and_the_other_is_read(
    tree: Tree, check: Callable[..., tuple[int, dict]]
) -> None:
    (tree.root / 'train.txt').write_text('images/a.png\n')
    status, found = check()
    assert (status, list(found['samples'])) == (1, ['eval'])
    assert found['problems'][0]['problem'].startswith(f'train: {tree.root}/train.txt:1: expected an image and a label map')


def test_a_limit_reads_samples_from_all_over_the_data_set(check: Callable[..., tuple[int, dict]]) -> None:
    assert [spread_evenly(10, limit) for limit in (None, 20, 4, 1)] == [list(range(10)), list(range(10)), [0, 2, 5, 7], [0]]
    assert check('--limit', '1')[1]['samples'] == {'train': {'all': 3, 'read': 1}, 'eval': {'all': 1, 'read': 1}}


def test_several_processes_find_the_same(tree: Tree) -> None:
    tree.put('train', 'broken', b'no picture', labels(*[[0] * 6] * 4))
    for number in range(20):
        tree.put('train', f'more{number}', picture(10 + number % 15), labels(*[[number % 3] * 6] * 4))
    task = open_job(*tree.words()[:1], [(tree.words()[2], 'test')]).task
    alone, together = (take_census(task, limit=None, workers=workers, advance=lambda *_: None) for workers in (0, 2))  # type: ignore[arg-type]
    assert alone.record() == together.record()
    assert len(alone.duplicates) == 5
    assert duplicate_rows(alone)[0] == {'equal images': 2, 'they are': 'more0.png (train), more15.png (train)'}


def test_progress_counts_to_the_number_of_samples(tree: Tree) -> None:
    task = open_job(*tree.words()[:1], [(tree.words()[2], 'test')]).task
    heard: list[tuple[str, int, int]] = []
    take_census(task, limit=2, workers=0, advance=lambda *progress: heard.append(progress))  # type: ignore[arg-type]
    assert heard == [('train', 1, 2), ('train', 2, 2), ('eval', 1, 1)]


def test_one_problem_in_many_files_is_reported_once() -> None:
    census = Census({}, {}, [Problem('train', f'{n}.png', f'{n}.png: is empty') for n in range(3)], [])
    census.problems.insert(0, Problem('eval', 'x.png', 'x.png: is cut off'))
    assert [(reason, count, first.name) for reason, count, first in census.reasons()] == [
        ('is empty', 3, '0.png'),
        ('is cut off', 1, 'x.png'),
    ]


def test_a_split_without_a_usable_sample_is_to_be_repaired_not_skipped(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    (tree.root / 'images/d.png').write_bytes(b'')
    assert cli.main(['data', 'check', *tree.words()]) == 1
    again = f'next: repair what is wrong, and check again: phalanx data check {shlex.join(tree.words()[:-2])}\n'
    assert capsys.readouterr().out.endswith(again)


def test_many_sizes_are_reported_in_steps_of_the_longer_side() -> None:
    census = Census({}, {'train': SplitCensus(60)}, [], [])
    for width in range(100, 160):
        census.splits['train'].sizes[width, 90] += 2
    rows = size_rows(census)
    assert rows[0] == {'longer side': '100 to 109', 'train images': 20, 'train share': 0.1667}
    assert sum(row['train images'] for row in rows) == 120  # type: ignore[misc]


def test_the_page_shows_everything_without_the_network(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.put('val', 'b2<', picture(1), labels(*[[0] * 6] * 4))
    tree.put('val', 'wrong', picture(5), labels(*[[9] * 6] * 4))
    assert cli.main(['data', 'check', *tree.words(), '--page', 'out/page.html']) == 1
    output = capsys.readouterr().out
    for words in ('road', '8 x 2', 'has pixels of value 9', 'page: out/page.html', '5 samples can be used, 1 cannot'):
        assert words in output
    assert output.endswith(f'or skip it: phalanx train {shlex.join(tree.words()[:-2])} --set train.bad_samples=1\n')
    page = Path('out/page.html').read_text()
    for words in ('road', '8 x 2', 'has pixels of value 9', 'b2&lt;.png', 'never in the training samples: car'):
        assert words in page
    assert page.count('<img src="data:image/jpeg;base64,') == 5
    assert not re.search(r'<script|<link|https?://|b2<', page)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['nowhere'], 'nowhere: no such file or shipped recipe'),
        (['pp_liteseg_digits', '--limit', '0'], '--limit must be at least 1'),
        (['pp_liteseg_digits', '--set', 'data.rot=x'], 'data.rot: unknown key'),
    ],
)
def test_a_wrong_request_reads_nothing(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(['data', 'check', *words]) == 2
    assert message in capsys.readouterr().err


def test_void_pixels_of_a_picture_stay_as_they_are(tree: Tree) -> None:
    survey = open_job(*tree.words()[:1], [(tree.words()[2], 'test')]).task.survey('train')  # type: ignore[attr-defined]
    assert isinstance(survey, PixelSurvey)
    drawn = survey.picture(0)
    np.testing.assert_array_equal(drawn[:, 5], picture(0)[:, 5])
    assert (drawn[:, 0] != picture(0)[:, 0]).any()


def test_samples_that_make_no_batch_are_a_problem_before_training(check: Callable[..., tuple[int, dict]]) -> None:
    """The samples for training are of 6 x 4 and of 8 x 2 pixels."""
    status, found = check('--set', 'transforms=[]')
    assert (status, len(found['problems'])) == (1, 1)
    assert found['problems'][0]['problem'].startswith('train: the images of a batch differ in size (6 x 4, 8 x 2): ')


def test_a_batch_larger_than_the_data_is_no_sample_that_cannot_be_used(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(['data', 'check', *tree.words(), '--set', 'train.global_batch_size=99']) == 1
    assert '4 samples can be used, but a training would fail: see the problems\n' in capsys.readouterr().out


def test_samples_that_make_no_batch_end_a_run_in_one_line(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *tree.words()[:3],
        'transforms=[]',
        'loss=[cross_entropy, cross_entropy, cross_entropy]',
        'ema=null',
        'train.global_batch_size=3',
        'train.workers=0',
        'device=cpu',
    ]
    assert run_here('train', *words, '--save_dir', 'run') == 1
    message = (
        'the run failed: the images of a batch differ in size (6 x 4, 8 x 2): end the transforms with one that fixes the size'
    )
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)


@pytest.mark.parametrize(('text', 'needed'), [('', 0), ('abc', 3), ('aab', 4), ('aaa', 5)])
def test_ctc_needs_a_blank_between_equal_characters(text: str, needed: int) -> None:
    assert ctc_steps_needed(text) == needed


def check_lines(folder: Path, *sets: str) -> int:
    """Exit status of `data check --json` for the lines of text in `list.txt`."""
    data = f'data={{name: label_files, root: {folder}, train: [list.txt], eval: [list.txt]}}'
    words = ('--page', str(folder / 'data.html'), '--workers', '0', '--json')
    return cli.main(['data', 'check', 'crnn_digits', '--set', data, *sets, *words])


def test_lines_too_narrow_for_their_text_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CRNN gives one place for four columns: 8 for 32, which `1234567` fits into and `1111111` (13 places) does not."""
    for name in ('a', 'b'):
        Image.fromarray(picture(ord(name), 32, 64)).save(tmp_path / f'{name}.png')
    (tmp_path / 'list.txt').write_text('a.png\t1234567\nb.png\t1111111\n')
    assert check_lines(tmp_path, 'image_size=[32,32]', 'train.global_batch_size=2') == 0
    remarks = json.loads(capsys.readouterr().out)['remarks']
    cure = 'their texts need more than the 8 time steps that CTC has at a width of 32, so nothing is learned from them'
    assert f'train: 1 sample (too long for the width): {cure}; increase the width in `image_size`' in remarks


def test_characters_that_the_dictionary_has_not_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(picture(0, 32, 64)).save(tmp_path / 'a.png')
    (tmp_path / 'list.txt').write_text('a.png\t1€2£€\u200b\u0301\n')
    assert check_lines(tmp_path, 'train.global_batch_size=1') == 0
    remarks = json.loads(capsys.readouterr().out)['remarks']
    message = 'train: 5 characters (not in the dictionary), 4 kinds, the most frequent € £ U+200B U+0301: they are neither'
    assert any(remark.startswith(message) for remark in remarks)


def test_different_texts_of_one_image_and_paths_of_windows_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(picture(0, 32, 64)).save(tmp_path / 'a.png')
    (tmp_path / 'list.txt').write_text('a.png\t1\na.png\t1\na.png\t2\nim\\b.png\t3\n')
    assert check_lines(tmp_path, 'train.global_batch_size=1') == 1
    census = json.loads(capsys.readouterr().out)
    note = f'train: 1 images of {tmp_path / "list.txt"} have several lines with different texts, such as a.png'
    assert note in census['remarks']
    reason = 'cannot be read: No such file or directory; folders are divided by /, not by \\'
    assert reason in census['problems'][0]['problem']


@pytest.mark.parametrize('right_to_left', [False, True])
def test_letters_that_are_written_from_the_right_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], right_to_left: bool
) -> None:
    Image.fromarray(picture(0, 32, 64)).save(tmp_path / 'a.png')
    (tmp_path / 'list.txt').write_text('a.png\t\u05e9\u05dc 1\n')
    dictionary = f'characters={{dictionary: [\u05e9, \u05dc, "1", " "], right_to_left: {str(right_to_left).lower()}}}'
    assert check_lines(tmp_path, dictionary, 'train.global_batch_size=1') == 0
    remarks = json.loads(capsys.readouterr().out)['remarks']
    note = 'train: 1 sample (from the right): the network reads from the left, so such texts must be in the order of the image'
    assert any(remark.startswith(note) for remark in remarks) is not right_to_left


def test_lines_on_their_side_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two digits may be higher than wide."""
    for name, text in {'a': '123', 'b': '11'}.items():
        Image.fromarray(picture(len(text), 48, 32)).save(tmp_path / f'{name}.png')
    (tmp_path / 'list.txt').write_text('a.png\t123\nb.png\t11\n')
    assert check_lines(tmp_path, 'train.global_batch_size=1') == 0
    note = 'train: 1 sample (taller than wide): they become a few columns of pixels'
    assert any(remark.startswith(note) for remark in json.loads(capsys.readouterr().out)['remarks'])


def test_texts_that_are_cut_off_or_changed_and_entries_that_match_nothing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second tab; a letter with a combining accent; entries of two characters and twice."""
    Image.fromarray(picture(0, 32, 64)).save(tmp_path / 'a.png')
    (tmp_path / 'list.txt').write_text('a.png\tu\u0308b\tbar\n')
    dictionary = 'characters={dictionary: [b, \u00fc, ab, b], lower_case: false}'
    assert check_lines(tmp_path, dictionary, 'train.global_batch_size=1') == 0
    census = json.loads(capsys.readouterr().out)
    remarks = '\n'.join(census['remarks'])
    assert f"train: 1 lines of {tmp_path / 'list.txt'} have a second '\\t'; what is behind it is not part" in remarks
    assert (
        'train: 2 characters (changed to the normal form NFC), 2 kinds, the most frequent U+0075 U+0308: texts are' in remarks
    )
    assert "train: 2 of 4 entries of the dictionary match no character of a text: 'b', 'ab'; each must be" in remarks
    assert {each['class'] for each in census['classes']} >= {'\u00fc', 'b'}


def test_boxes_that_cannot_be_learned_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On an image 100 wide that the network sees at 64, 12 x 40 becomes less than 8 pixels wide; 20 x 40 does not.

    The second cat lies on the first, and so does a dog.
    """
    Image.fromarray(picture(0, 100, 100)).save(tmp_path / 'a.png')
    boxes = [(1, 10, 10, 20, 40), (1, 50, 10, 12, 40), (1, 10, 10, 20, 40), (2, 10, 10, 20, 39.5)]
    annotations = [
        {'id': n, 'image_id': 1, 'category_id': label, 'bbox': box, 'area': box[2] * box[3], 'iscrowd': 0}
        for n, (label, *box) in enumerate(boxes, 1)
    ]
    names = [{'id': n, 'name': name} for n, name in enumerate(('cat', 'dog'), 1)]
    images = [{'id': 1, 'file_name': 'a.png', 'width': 100, 'height': 100}]
    coco = {'images': images, 'annotations': annotations, 'categories': names}
    (tmp_path / 'boxes.json').write_text(json.dumps(coco))
    data = f'data={{name: coco, root: {tmp_path}, train: boxes.json, eval: boxes.json, train_images: ., eval_images: .}}'
    sizes = 'eval_transforms=[{name: resize, target_size: [64, 64]}]', 'train.global_batch_size=1'
    words = ('--page', str(tmp_path / 'data.html'), '--workers', '0', '--json')
    status = cli.main(['data', 'check', 'ppyoloe_digits', '--set', data, *sizes, *words])
    output = capsys.readouterr()
    assert status == 0, output
    remarks = json.loads(output.out)['remarks']
    message = {remark.partition(')')[0] for remark in remarks if remark.startswith('train: 1 sample (')}
    assert message == {f'train: 1 sample {what[:-1]}' for what in (SMALL, TWICE, AMBIGUOUS)}


def test_a_mask_that_is_a_scaled_copy_is_reported_with_the_fix(tree: Tree, check: Callable[..., tuple[int, dict]]) -> None:
    tree.put('train', 'scaled', picture(4, 40, 60), labels(*[[0] * 30] * 20))
    found = check()[1]
    problems = {Path(problem['sample']).stem: problem['problem'] for problem in found['problems']}
    assert problems['scaled'].endswith('it is a scaled copy: `phalanx new` and `phalanx data prepare masks` resize it')


def test_data_that_training_refuses_never_passes_the_check(check: Callable[..., tuple[int, dict]]) -> None:
    """Every sample can be read, but the recipe makes nothing of them that can be trained."""
    status, found = check('--set', 'train.micro_batches=8')
    assert (status, len(found['problems'])) == (1, 1)
    assert 'it needs at least 8 samples' in found['problems'][0]['problem']
