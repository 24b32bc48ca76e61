"""JSON files of annotations, in the format of COCO (Lin et al., ECCV 2014), also used by Objects365."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from phalanx.data.bands import Bands
from phalanx.data.checks import AnnotationError, is_file
from phalanx.data.coco import Key, parse_categories, parse_image, parse_object, parse_plain_objects, place_of
from phalanx.data.coco_file import Block, read_blocks
from phalanx.data.folders import Problems, check_file, check_folder, check_inside, check_names, read_class_names
from phalanx.data.samples import Split
from phalanx.families.detection.data.annotated import KEYPOINTS, ROTATED, UNKNOWN, AnnotatedImages, Annotations


class CocoJson:
    """Images below `root`, in folders `train_images` and `eval_images`, annotated by the JSON files `train` and `eval`.

    Several files may annotate a split, each with some of its images, or with one class: objects of an image are joined.
    `classes`: names of the classes in the order of the network's outputs, or a file below `root` with one name per line. By
    default, the categories of the file `train` in their order; prediction then needs that file too. `empty_images`: train also
    on images without objects (evaluation always counts them). `bands`: of the images, if they are not RGB.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str | tuple[str, ...] = 'annotations/instances_train2017.json',
        eval: str | tuple[str, ...] = 'annotations/instances_val2017.json',
        train_images: str = 'train2017',
        eval_images: str = 'val2017',
        classes: str | tuple[str, ...] | None = None,
        empty_images: bool = False,
        bands: Bands | None = None,
    ) -> None:
        self.root, self.classes, self.empty_images, self.bands = root, classes, empty_images, bands
        self.files: dict[Split, tuple[str, ...]] = {
            'train': (train,) if isinstance(train, str) else train,
            'eval': (eval,) if isinstance(eval, str) else eval,
        }
        named: dict[str, tuple[str, ...]] = {'train_images': (train_images,), 'eval_images': (eval_images,)}
        named |= {'train': self.files['train'], 'eval': self.files['eval']}
        for key, paths in named.items():
            if not paths:
                raise ValueError(f'data.{key}: names no file')
            for path in paths:
                check_inside(path or '.', root, f'data.{key}')
        self.folders: dict[Split, str] = {'train': train_images, 'eval': eval_images}

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        if self.classes is not None:
            return read_class_names(self.classes, self.root)
        check_folder(self.root)
        names, _ = read_annotations([self.root / file for file in self.files['train']], self.root)
        return check_names(names, str(self.root / self.files['train'][0]))

    def split(self, split: Split) -> AnnotatedImages:
        check_folder(self.root)
        paths, place = [self.root / file for file in self.files[split]], self.place_in(self.folders[split])
        names, annotations = read_annotations(paths, self.root)
        classes = _classes(names, self.class_names, annotations.place)
        return annotations.source(
            keep_empty=split == 'eval' or self.empty_images, place=place, classes=classes, bands=self.bands
        )

    def place_in(self, folder: str) -> Callable[[str], str]:
        """Return a function from the name of an image in the JSON file to its path below the root."""
        return lambda file: f'{folder}/{file}' if folder else file


class Objects365(CocoJson):
    """Objects365 (Shao et al., ICCV 2019): 365 classes; the JSON files and the patches of images in `train` and `val`.

    The annotations name an image as `images/v1/patch8/X.jpg`; it may lie below `train` under that name, as `patch8/X.jpg` (as
    the archives unpack) or as `X.jpg`. `classes` as in `coco`.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str = 'annotations/zhiyuan_objv2_train.json',
        eval: str = 'annotations/zhiyuan_objv2_val.json',
        classes: str | tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(root=root, train=train, eval=eval, train_images='train', eval_images='val', classes=classes)

    def place_in(self, folder: str) -> Callable[[str], str]:
        depth: list[int] = []  # number of trailing parts of image names that are folders on disk; taken from the first image

        def place(file: str) -> str:
            parts = Path(file).parts
            if not depth:
                depths = (len(parts), 2, 1)
                depth.append(next((n for n in depths if is_file(self.root / folder / Path(*parts[-n:]))), len(parts)))
            return str(Path(folder, *parts[-depth[0] :]))

        return place


def read_annotations(paths: Sequence[Path], root: Path) -> tuple[tuple[str, ...], Annotations]:
    """The categories of the JSON files of a split, and their annotations below `root`; labels are indices of categories.

    The result is cached and must not be modified. Raises FileNotFoundError and ValueError.
    """
    for path in paths:
        check_file(path)
    stats = [path.stat() for path in paths]
    return _read_annotations(tuple(paths), root, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=2)  # of training and of evaluation
def _read_annotations(
    paths: tuple[Path, ...], root: Path, state: tuple[tuple[int, int], ...]
) -> tuple[tuple[str, ...], Annotations]:
    """Cached until a file changes: reading a million boxes takes ten seconds, and a start needs them several times."""
    reading = _Reading(Annotations(root, paths[0] if len(paths) == 1 else root), is_joined=len(paths) > 1)
    for path in paths:
        reading.add(path)
    return tuple(reading.labels), reading.annotations


class _Reading:
    """Images, labels and objects of the files of a split; one image in several files has the objects of all, each once."""

    def __init__(self, annotations: Annotations, *, is_joined: bool) -> None:
        self.annotations, self.is_joined = annotations, is_joined
        self.labels: dict[str, int] = {}
        self.of_name: dict[str, tuple[int, tuple[int, int]]] = {}  # number and size of an image
        self.known: set[tuple[int, int, tuple[int, ...]]] = set()

    def add(self, path: Path) -> None:
        """Add the content of a file. Raises FileNotFoundError, and ValueError with all faults of images or of annotations."""
        categories, images, problems = list[Any](), dict[Key, int](), Problems()
        names: dict[Key, str] | None = None
        for block in read_blocks(path):
            if block.part == 'categories':
                categories += block.entries
            elif block.part == 'images':
                self._add_images(block, path, images, problems)
            else:
                if names is None:
                    names = self._name(categories, path, problems)
                self._add_objects(block, path, images, names, problems)
        if names is None:
            self._name(categories, path, problems)
        problems.check()

    def _name(self, categories: list[Any], path: Path, problems: Problems) -> dict[Key, str]:
        """Names of the categories, which get labels. Raises ValueError."""
        names = parse_categories(categories, path)
        problems.check()  # stop here: each box of a faulty image would be reported, too
        for name in names.values():
            self.labels.setdefault(name, len(self.labels))
        return names

    def _add_images(self, block: Block, path: Path, images: dict[Key, int], problems: Problems) -> None:
        """Add images that no other file has; put the number of each id into `images`."""
        # Ids of images need not be consecutive: map them to numbers in the order of the file.
        for place, entry in enumerate(block.entries, block.first):
            with problems:
                where = place_of(path, 'image', place, entry)
                image = parse_image(entry, where)
                number, size = self.of_name.get(image.name, (None, image.size))
                if image.key in images and images[image.key] != number:
                    raise AnnotationError(f'{where}: the id is used twice; give {image.name} another')
                if size != image.size and UNKNOWN not in (size, image.size):
                    raise AnnotationError(f'{where}: {image.name} is listed before, with {size[0]} x {size[1]} pixels')
                if number is None:
                    check_inside(image.name, self.annotations.root, f'{where}: file_name')
                    number = self.annotations.add_image(image.name, image.size[::-1])
                    self.of_name[image.name] = number, image.size
                elif image.key not in images:
                    self.is_joined = True
                images[image.key] = number

    def _add_objects(
        self, block: Block, path: Path, images: dict[Key, int], categories: dict[Key, str], problems: Problems
    ) -> None:
        """Add the boxes of a block of annotations, once each."""
        labels = {key: self.labels[name] for key, name in categories.items()}
        if not self.is_joined and (objects := parse_plain_objects(block.entries, images, labels)):
            self.annotations.add_boxes(objects)
            return
        for place, entry in enumerate(block.entries, block.first):
            with problems:
                where = place_of(path, 'annotation', place, entry)
                one = parse_object(entry, images, categories, where)
                number, label = images[one.image], labels[one.category]
                if self.is_joined:
                    row = number, label, tuple(round(value) for value in one.box)
                    if row in self.known:
                        self.annotations.notes['boxes of images listed twice, counted once'] += 1
                        continue
                    self.known.add(row)
                if one.has_keypoints or one.corners:
                    self.annotations.notes[KEYPOINTS if one.has_keypoints else ROTATED] += 1
                self.annotations.add_box(number, one.box, label, area=one.area, ignored=one.ignored)


def _classes(names: Sequence[str], class_names: tuple[str, ...], path: Path) -> list[int]:
    """Class of each category, by name, in order."""
    numbers_of = {name: number for number, name in enumerate(class_names)}
    if unknown := [name for name in names if name not in numbers_of]:
        raise ValueError(
            f'{path}: has categories that are not classes: {", ".join(unknown[:5])}; '
            f'name them in data.classes (now {len(class_names)}: {", ".join(class_names[:5])} ...)'
        )
    return [numbers_of[name] for name in names]
