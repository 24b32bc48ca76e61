"""One JSON file of annotations per split, in the format of COCO (Lin et al., ECCV 2014), also used by Objects365."""

from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from phalanx.data.folders import Problems, check_file, check_folder, check_inside, check_names, read_class_names, read_json
from phalanx.data.samples import Split
from phalanx.families.detection.data.annotated import LARGEST, AnnotatedImages, Annotations, numbers


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


def read_annotations(path: Path, root: Path) -> tuple[dict[Any, str], Annotations]:
    """The categories of a JSON file (id -> name), and its annotations below `root`; labels are indices of categories.

    The result is cached and must not be modified. Raises FileNotFoundError and ValueError.
    """
    check_file(path)
    stat = path.stat()
    return _read_annotations(path, root, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2)  # of training and of evaluation
def _read_annotations(path: Path, root: Path, modified: int, size: int) -> tuple[dict[Any, str], Annotations]:
    """Cached until the file changes: reading a million boxes takes ten seconds, and a start needs them several times."""
    # Categories first: annotations refer to their ids.
    content = _parse(path)
    categories = _categories(content, path)
    labels = {number: place for place, number in enumerate(categories)}
    annotations, images, problems = Annotations(root, path), {}, Problems()
    # Ids of images need not be consecutive: map them to numbers in the order of the file.
    for image in content['images']:
        with problems:
            number = _field(image, 'id', 'an image', path)
            name = _field(image, 'file_name', f'image {number}', path)
            if number in images:
                raise ValueError(f'{path}: image {number}: the id is used twice; give {name} another')
            check_inside(str(name), root, f'{path}: image {number}: file_name')
            side = numbers(
                [image.get('height') or 0, image.get('width') or 0], 2, f'{path}: image {number}', 'height and width'
            )
            images[number] = annotations.add_image(str(name), (int(side[0]), int(side[1])))
    problems.check()  # stop here: each box of a faulty image would be reported too
    for annotation in content['annotations']:
        with problems:
            _add(annotation, annotations, images, labels, path)
    problems.check()
    return categories, annotations


def _parse(path: Path) -> dict[str, Any]:
    content = read_json(path)
    lists = [content.get(key) for key in ('images', 'annotations', 'categories')] if isinstance(content, dict) else [None]
    if not all(isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in lists):
        raise ValueError(f'{path}: is not in the format of COCO: it needs lists `images`, `annotations` and `categories`')
    assert isinstance(content, dict)
    return content


def _categories(content: dict[str, Any], path: Path) -> dict[Any, str]:
    """Category id -> name. Ids may begin anywhere and have gaps: COCO's 80 go up to 90."""
    names_by_id: dict[Any, str] = {}
    names: set[str] = set()
    for category in content['categories']:
        number = _field(category, 'id', 'a category', path)
        name = str(_field(category, 'name', f'category {number}', path))
        if number in names_by_id or name in names:
            raise ValueError(f'{path}: category {number}, {name!r}: the id or the name is used twice')
        names_by_id[number] = name
        names.add(name)
    return names_by_id


def _classes(categories: dict[Any, str], class_names: tuple[str, ...], path: Path) -> list[int]:
    """Class of each category, by name, in order."""
    numbers_of = {name: number for number, name in enumerate(class_names)}
    if unknown := [name for name in categories.values() if name not in numbers_of]:
        raise ValueError(
            f'{path}: has categories that are not classes: {", ".join(unknown[:5])}; '
            f'name them in data.classes (now {len(class_names)}: {", ".join(class_names[:5])} ...)'
        )
    return [numbers_of[name] for name in categories.values()]


def _add(
    annotation: dict[str, Any], annotations: Annotations, images: dict[Any, int], labels: dict[Any, int], path: Path
) -> None:
    where = f'annotation {annotation.get("id", "without id")}'
    image = _field(annotation, 'image_id', where, path)
    category = _field(annotation, 'category_id', where, path)
    if image not in images:
        raise ValueError(f'{path}: {where}: image_id {image} is not the id of an image; fix or remove the annotation')
    if category not in labels:
        known = ', '.join(map(str, list(labels)[:10])) + (' ...' if len(labels) > 10 else '')
        raise ValueError(f'{path}: {where}: category_id {category} is not the id of a category (they are {known})')
    bbox = _field(annotation, 'bbox', where, path)
    x, y, width, height = numbers(bbox, 4, f'{path}: {where}: bbox', 'x, y, width and height')
    area = annotation.get('area')
    # The annotated area is that of the outline; COCO's size classes are defined by it. Without one, use the box.
    annotations.add_box(
        images[image],
        (x, y, x + width, y + height),
        labels[category],
        area=area if isinstance(area, int | float) and 0 < area <= LARGEST**2 else None,
        ignored=bool(annotation.get('iscrowd') or annotation.get('ignore')),
    )


def _field(row: dict[str, Any], key: str, what: str, path: Path) -> Any:
    """Required value: a number, a string, or a list for `bbox` (ids must be hashable)."""
    value = row.get(key)
    if value is None or isinstance(value, dict) or (isinstance(value, list) and key != 'bbox'):
        raise ValueError(f'{path}: {what} has {"no" if value is None else "an invalid"} `{key}`')
    return value
