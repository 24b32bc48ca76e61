"""One text file of annotations per image, in the format of YOLO: `class x y width height`, as fractions of the image."""

from pathlib import Path
from typing import Any

from phalanx.config.read import ConfigError, load_yaml, to_plain
from phalanx.data.bands import Bands
from phalanx.data.folders import Problems, check_folder, check_inside, check_names, read_class_names, read_lines, read_text
from phalanx.data.samples import Split
from phalanx.data.yolo import PoseGuess, distinct_lines, keypoint_fields, names_in, parse_row
from phalanx.families.detection.data.annotated import KEYPOINTS, POLYGONS, AnnotatedImages, Annotations

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff')
KINDS = {'confidence': 'boxes with a confidence, which is left out', 'keypoints': KEYPOINTS, 'polygon': POLYGONS}


class YoloText:
    """Images in the folders `train` and `eval` below `root`, or listed in text files of that name, one path per line.

    The boxes of `images/train/X.jpg` are in `labels/train/X.txt`; if this file is empty, the image has no objects, and if there
    is none, the image is left out: nobody annotated it. `classes`: names, or a file below `root`: text with one name per line,
    or YAML with `names` (`data.yaml`). `empty_images`: train also on images without objects, as YOLO does. A polygon
    (`class x1 y1 x2 y2 x3 y3 ...`) becomes its bounding box; a confidence at the end of a line is left out, and so are the
    keypoints of poses (`kpt_shape` in data.yaml). `bands`: of the images, if they are not RGB.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str = 'images/train',
        eval: str = 'images/val',
        classes: str | tuple[str, ...] = 'data.yaml',
        empty_images: bool = True,
        bands: Bands | None = None,
    ) -> None:
        self.root, self.empty_images, self.bands = root, empty_images, bands
        self.places: dict[Split, str] = {'train': train, 'eval': eval}
        for key, path in self.places.items():
            check_inside(path, root, f'data.{key}')
        is_yaml = isinstance(classes, str) and classes.endswith(('.yaml', '.yml'))
        self.class_names = _names_in_yaml(root, str(classes)) if is_yaml else read_class_names(classes, root)
        settings = root / (str(classes) if is_yaml else 'data.yaml')
        self._settings = _settings(settings) if settings.is_file() else {}
        self._keypoints = keypoint_fields(self._settings) if self._settings else None

    def split(self, split: Split) -> AnnotatedImages:
        check_folder(self.root)
        annotations, problems = Annotations(self.root, self.root / self.places[split], relative=True), Problems()
        poses = PoseGuess()
        entry, place = self._settings.get('val' if split == 'eval' else split), self.places[split]
        if entry is not None and not str(to_plain(entry)).rstrip('/').endswith(place.rstrip('/')):
            annotations.notes[f'entry of data.yaml ({to_plain(entry)}), not used: data.{split} is {place}'] = 1
        for image in self._images(self.places[split]):
            labels = self.root / label_path(image)
            if labels.is_file():
                with problems:
                    number, count = annotations.add_image(image), len(self.class_names)
                    add_rows(read_text(labels), labels, number, annotations, problems, poses, count, self._keypoints or 0)
            else:
                annotations.notes['images without a file of labels (an empty one: no object), left out'] += 1
        if not len(annotations):
            raise ValueError(f'{annotations.place}: no image has a file of labels; that of {image} is expected at {labels}')
        if self._keypoints is None:
            with problems:
                poses.check(annotations.place)
        problems.check()
        return annotations.source(keep_empty=split == 'eval' or self.empty_images, bands=self.bands)

    def _images(self, place: str) -> list[str]:
        """Paths of images relative to the root. Raises FileNotFoundError if there are none, ValueError for an invalid list."""
        path = self.root / place
        if path.suffix == '.txt':
            listed = [(line.strip(), f'{path}:{number}') for number, line in read_lines(path)]
            return [check_inside(file.removeprefix('./'), self.root, where) for file, where in listed]
        if not path.is_dir():
            raise FileNotFoundError(f'{path}: there is no such folder; data.train and data.eval name those of the images')
        images = sorted(file.relative_to(self.root).as_posix() for file in path.rglob('*') if file.suffix.lower() in SUFFIXES)
        if not images:
            raise FileNotFoundError(f'{path}: holds no image ({", ".join(SUFFIXES)})')
        return images


def add_rows(
    text: str,
    path: Path,
    image: int,
    annotations: Annotations,
    problems: Problems,
    poses: PoseGuess,
    num_classes: int,
    keypoints: int = 0,
) -> None:
    """Add the boxes in the lines of a label file. Each faulty line is a problem of its own."""
    for line, number in distinct_lines(text).items():
        with problems:
            row = parse_row(line, f'{path}:{number}', keypoints)
            if row.label >= num_classes:
                raise ValueError(f'{path}:{number}: class {row.label} is not one of 0 to {num_classes - 1}')
            if row.kind in KINDS:
                annotations.notes[KINDS[row.kind]] += 1
            poses.add(row)
            annotations.add_box(image, row.box, row.label)


def label_path(image: str) -> str:
    """Path of the label file of an image: its last folder named `images` becomes `labels`, its suffix `.txt`."""
    *folders, name = Path(image).with_suffix('.txt').parts
    if 'images' in folders:
        folders[-1 - folders[::-1].index('images')] = 'labels'
    return str(Path(*folders, name))


def _names_in_yaml(root: Path, name: str) -> tuple[str, ...]:
    """The entry `names` of a YAML file: a list, or a mapping from numbers 0, 1, ... to names."""
    check_folder(root)
    path = root / check_inside(name, root, 'data.classes')
    if not path.is_file():
        raise FileNotFoundError(f'{path}: there is no such file')
    content = _settings(path)
    names = names_in(content, path)
    if not names or [*names] != [*range(len(names))]:
        raise ValueError(f'{path}: needs `names`: a list of the names of the classes, or a mapping from 0, 1, ... to them')
    return check_names(tuple(names.values()), str(path))


def _settings(path: Path) -> dict[str, Any]:
    """The keys of a YAML file. Raises ValueError."""
    try:
        settings: dict[str, Any] = load_yaml(path, notes=[]).value
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return settings
