"""One JSON file of annotations per split, in the format of COCO (Lin et al., ECCV 2014), also used by Objects365."""

from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path

from phalanx.data.checks import AnnotationError
from phalanx.data.coco import Key, check_parts, parse_categories, parse_image, parse_object, place_of, read_boxes
from phalanx.data.folders import Problems, check_file, check_folder, check_inside, check_names, read_class_names
from phalanx.data.samples import Split
from phalanx.families.detection.data.annotated import KEYPOINTS, ROTATED, AnnotatedImages, Annotations


class CocoJson:
    """Images below `root`, in folders `train_images` and `eval_images`, annotated by the JSON files `train` and `eval`.

    `classes`: names of the classes in the order of the network's outputs, or a file below `root` with one name per line. By
    default, the categories of the file `train` in their order; prediction then needs that file too. `empty_images`: train also
    on images without objects (evaluation always counts them).
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str = 'annotations/instances_train2017.json',
        eval: str = 'annotations/instances_val2017.json',
        train_images: str = 'train2017',
        eval_images: str = 'val2017',
        classes: str | tuple[str, ...] | None = None,
        empty_images: bool = False,
    ) -> None:
        self.root, self.classes, self.empty_images = root, classes, empty_images
        for key, path in {'train': train, 'eval': eval, 'train_images': train_images, 'eval_images': eval_images}.items():
            check_inside(path or '.', root, f'data.{key}')
        self.files: dict[Split, str] = {'train': train, 'eval': eval}
        self.folders: dict[Split, str] = {'train': train_images, 'eval': eval_images}

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        if self.classes is not None:
            return read_class_names(self.classes, self.root)
        check_folder(self.root)
        path = self.root / self.files['train']
        categories, _ = read_annotations(path, self.root)
        return check_names(tuple(categories.values()), str(path))

    def split(self, split: Split) -> AnnotatedImages:
        check_folder(self.root)
        path, place = self.root / self.files[split], self.place_in(self.folders[split])
        categories, annotations = read_annotations(path, self.root)
        classes = _classes(categories, self.class_names, path)
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


def read_annotations(path: Path, root: Path) -> tuple[dict[Key, str], Annotations]:
    """The categories of a JSON file (id -> name), and its annotations below `root`; labels are indices of categories.

    The result is cached and must not be modified. Raises FileNotFoundError and ValueError.
    """
    check_file(path)
    stat = path.stat()
    return _read_annotations(path, root, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2)  # of training and of evaluation
def _read_annotations(path: Path, root: Path, modified: int, size: int) -> tuple[dict[Key, str], Annotations]:
    """Cached until the file changes: reading a million boxes takes ten seconds, and a start needs them several times."""
    # Categories first: annotations refer to their ids.
    content = check_parts(read_boxes(path), path)
    categories = parse_categories(content, path)
    labels = {key: place for place, key in enumerate(categories)}
    annotations, problems = Annotations(root, path), Problems()
    # Ids of images need not be consecutive: map them to numbers in the order of the file.
    images: dict[Key, int] = {}
    of_name: dict[str, int] = {}  # an image that is listed twice has the objects of both entries
    for place, entry in enumerate(content['images']):
        with problems:
            where = place_of(path, 'image', place, entry)
            image = parse_image(entry, where)
            number = of_name.get(image.name)
            if images.get(image.key, number) != number:
                raise AnnotationError(f'{where}: the id is used twice; give {image.name} another')
            if number is None:
                check_inside(image.name, root, f'{where}: file_name')
                number = of_name[image.name] = annotations.add_image(image.name, image.size[::-1])
            images[image.key] = number
    problems.check()  # stop here: each box of a faulty image would be reported too
    # An object in both entries of such an image counts once.
    joined = len(of_name) < len(images)
    known: set[tuple[int, int, tuple[int, ...]]] = set()
    for place, entry in enumerate(content['annotations']):
        with problems:
            where = place_of(path, 'annotation', place, entry)
            one = parse_object(entry, images, categories, where)
            number, label = images[one.image], labels[one.category]
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
    return categories, annotations


def _classes(categories: dict[Key, str], class_names: tuple[str, ...], path: Path) -> list[int]:
    """Class of each category, by name, in order."""
    numbers_of = {name: number for number, name in enumerate(class_names)}
    if unknown := [name for name in categories.values() if name not in numbers_of]:
        raise ValueError(
            f'{path}: has categories that are not classes: {", ".join(unknown[:5])}; '
            f'name them in data.classes (now {len(class_names)}: {", ".join(class_names[:5])} ...)'
        )
    return [numbers_of[name] for name in categories.values()]
