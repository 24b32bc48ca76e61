"""JSON files of annotations, in the format of COCO (Lin et al., ECCV 2014), also used by Objects365."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from phalanx.data.checks import AnnotationError
from phalanx.data.coco import Key, check_parts, parse_categories, parse_image, parse_object, place_of, read_boxes
from phalanx.data.folders import Problems, check_file, check_folder, check_inside, check_names, read_class_names
from phalanx.data.samples import Split
from phalanx.families.detection.data.annotated import KEYPOINTS, ROTATED, UNKNOWN, AnnotatedImages, Annotations


class CocoJson:
    """Images below `root`, in folders `train_images` and `eval_images`, annotated by the JSON files `train` and `eval`.

    Several files may annotate a split, each with some of its images, or with one class: objects of an image are joined.
    `classes`: names of the classes in the order of the network's outputs, or a file below `root` with one name per line. By
    default, the categories of the file `train` in their order; prediction then needs that file too. `empty_images`: train also
    on images without objects (evaluation always counts them).
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
    ) -> None:
        self.root, self.classes, self.empty_images = root, classes, empty_images
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
        return annotations.source(keep_empty=split == 'eval' or self.empty_images, place=place, classes=classes)

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
                depth.append(next((n for n in depths if (self.root / folder / Path(*parts[-n:])).is_file()), len(parts)))
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
    annotations = Annotations(root, paths[0] if len(paths) == 1 else root)
    labels: dict[str, int] = {}
    # Number and size of an image; one that is listed twice has the objects of both entries, each once.
    of_name: dict[str, tuple[int, tuple[int, int]]] = {}
    known: set[tuple[int, int, tuple[int, ...]]] = set()
    for path in paths:
        content = check_parts(read_boxes(path), path)
        categories = parse_categories(content, path)
        for name in categories.values():
            labels.setdefault(name, len(labels))
        images = _add_images(content, path, annotations, of_name)
        joined = len(paths) > 1 or len(set(images.values())) < len(images)
        problems = Problems()
        for place, entry in enumerate(content['annotations']):
            with problems:
                where = place_of(path, 'annotation', place, entry)
                one = parse_object(entry, images, categories, where)
                number, label = images[one.image], labels[categories[one.category]]
                if joined:
                    row = number, label, tuple(round(value) for value in one.box)
                    if row in known:
                        annotations.notes['boxes of images listed twice, counted once'] += 1
                        continue
                    known.add(row)
                if one.has_keypoints or one.corners:
                    annotations.notes[KEYPOINTS if one.has_keypoints else ROTATED] += 1
                annotations.add_box(number, one.box, label, area=one.area, ignored=one.ignored)
        problems.check()
    return tuple(labels), annotations


def _add_images(
    content: dict[str, Any], path: Path, annotations: Annotations, of_name: dict[str, tuple[int, tuple[int, int]]]
) -> dict[Key, int]:
    """Add the images of a file that `of_name` does not have; return the number of each id. Raises ValueError."""
    # Ids of images need not be consecutive: map them to numbers in the order of the file.
    images: dict[Key, int] = {}
    problems = Problems()
    for place, entry in enumerate(content['images']):
        with problems:
            where = place_of(path, 'image', place, entry)
            image = parse_image(entry, where)
            number, size = of_name.get(image.name, (None, image.size))
            if image.key in images and images[image.key] != number:
                raise AnnotationError(f'{where}: the id is used twice; give {image.name} another')
            if size != image.size and UNKNOWN not in (size, image.size):
                raise AnnotationError(f'{where}: {image.name} is listed before, with {size[0]} x {size[1]} pixels')
            if number is None:
                check_inside(image.name, annotations.root, f'{where}: file_name')
                number = annotations.add_image(image.name, image.size[::-1])
                of_name[image.name] = number, image.size
            images[image.key] = number
    problems.check()  # stop here: each box of a faulty image would be reported too
    return images


def _classes(names: Sequence[str], class_names: tuple[str, ...], path: Path) -> list[int]:
    """Class of each category, by name, in order."""
    numbers_of = {name: number for number, name in enumerate(class_names)}
    if unknown := [name for name in names if name not in numbers_of]:
        raise ValueError(
            f'{path}: has categories that are not classes: {", ".join(unknown[:5])}; '
            f'name them in data.classes (now {len(class_names)}: {", ".join(class_names[:5])} ...)'
        )
    return [numbers_of[name] for name in names]
