"""Meaning of masks, whose numbers, palette or colours give the class of every pixel."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageOps

from phalanx.curation.prepare.class_files import read_class_file
from phalanx.curation.prepare.colours import VOID_NAME, VOID_NAMES, Colour, count_colours, format_colour
from phalanx.curation.prepare.label_maps import BACKGROUND, MOST, VOID
from phalanx.curation.prepare.samples import LeftOut
from phalanx.data.checks import AnnotationError, open_image, size_of
from phalanx.data.class_lists import ADE20K_CLASSES, CITYSCAPES_CLASSES
from phalanx.data.image import LabelMap

CITY = re.compile(r'[a-z-]+_\d{6}_\d{6}_gt(?:fine|coarse)_label(train)?ids')  # in the archives: aachen_000000_000019_...
SCENE = re.compile(r'ade_(?:train|val)_\d{8}')
FEW = 64  # images with more colours are photographs, or masks saved as JPEG
JPEG = ('.jpg', '.jpeg')
LEVELS = (8, 16)  # up to 8 numbers with gaps from 16 on are levels of grey, and 255 is one of them
MIDDLE, MOST_MIDDLE = (64, 192), 0.1  # greys that a JPEG file of two values has at edges only, and their highest share


@dataclass(frozen=True)
class Meaning:
    """Mapping from the values of masks (numbers or colours) to classes."""

    class_names: tuple[str, ...]
    values: Mapping[Colour | int, int]  # class of each colour or number; others are VOID
    is_plain: bool  # True if masks can be trained on as they are
    is_blurred: bool = False  # two values with edges in between (JPEG, resized): black or white, whichever is nearer
    by_colour: bool = False  # palettes differ from file to file, so that their numbers mean nothing
    is_complete: bool = False  # another colour is an error
    ignores_others: bool = False  # as data sets do whose classes are known
    notes: tuple[str, ...] = ()
    pixels: Mapping[Path, Mapping[Colour | int, int]] = field(
        default_factory=dict
    )  # of each value of masks of numbers, if plain


def infer_meaning(masks: Sequence[Path], classes_from: Path | None) -> Meaning:
    """Infer the classes of the values in all masks; guesses become notes. Masks that cannot be opened are left to their reader.

    JPEG changes values, so other masks decide if there are some. Raises AnnotationError for images that are not masks.
    """
    chosen = [mask for mask in masks if mask.suffix.lower() not in JPEG] or [*masks]
    blurred = chosen[0].suffix.lower() in JPEG
    names, numbered, colours = read_class_file(classes_from)
    seen = _collect_values(chosen, by_colour=False, blurred=blurred, are_named=bool(colours))
    pixels, by_colour, coloured = seen.pixels, seen.by_colour, seen.coloured
    found = set(pixels)
    known = None if classes_from else _known_classes(chosen, found)
    if known:
        return replace(known, pixels=seen.of_mask)
    greys = {value if isinstance(value, int) else value[0] for value in found if isinstance(value, int) or len({*value}) == 1}
    if blurred:
        _check_two_values(pixels, chosen[0])
    # too many numbers for classes, nearly all of their pixels black or white: resized masks of two values
    blurred = blurred or (
        len(greys) == len(found) and not names and not numbered and len(greys) > FEW and _are_nearly_two(pixels)
    )
    if blurred or (len(greys) == len(found) and _are_two(greys, seen.together)):
        names = [*numbered.values()] if len(numbered) == 2 else names
        names = names if len(names) == 2 and not colours else [BACKGROUND, 'object']
        note = f'two values: {names[0]}, and brighter ones: {names[1]}'
        values: dict[Colour | int, int] = {grey: int(grey > 0) for grey in greys}
        return Meaning(tuple(names), values, is_plain=False, is_blurred=blurred, by_colour=by_colour, notes=(note,))
    if coloured:
        return replace(_assign_colours(found, colours, classes_from), by_colour=by_colour)
    numbers = sorted(value for value in found if isinstance(value, int) and value != VOID)
    if len(numbers) > MOST:
        raise AnnotationError(f'{masks[0]}: masks have {len(numbers)} different numbers; {MOST} classes fit')
    is_ignored = VOID in found
    is_named = numbered.get(VOID, VOID_NAME).lower() not in VOID_NAMES
    if is_ignored and (is_named or (not names and not numbered and _are_levels(numbers))):
        numbers, is_ignored = [*numbers, VOID], False
    meaning = _name_numbers(numbers, names, numbered, classes_from)
    ignored = (f'255 in the masks is ignored: {pixels[VOID] / pixels.total():.1%} of the pixels',) if is_ignored else ()
    return replace(meaning, notes=(*meaning.notes, *ignored), pixels=seen.of_mask)


def _name_numbers(
    numbers: Sequence[int], names: Sequence[str], numbered: Mapping[int, str], classes_from: Path | None
) -> Meaning:
    """Classes of the `numbers` in masks, by the names in the file `classes_from`, in order or behind numbers."""
    if numbered and numbers:
        named = {number: numbered.get(number, f'class_{number}') for number in sorted({*numbers, *numbered})}
        places: dict[Colour | int, int] = {number: place for place, number in enumerate(named)}
        unnamed = [str(number) for number in numbers if number not in numbered]
        notes = (f'{classes_from} does not name the values {", ".join(unnamed[:10])} of the masks',) if unnamed else ()
        return Meaning(tuple(named.values()), places, is_plain=[*named] == [*range(len(named))], notes=notes)
    if names and numbers and numbers[-1] < len(names):
        own: dict[Colour | int, int] = {number: number for number in range(len(names))}
        return Meaning(tuple(names), own, is_plain=True)
    values: dict[Colour | int, int] = {number: place for place, number in enumerate(numbers)}
    if numbers == [0, 1]:
        return Meaning((BACKGROUND, 'object'), values, is_plain=True)
    last = numbers[-1] if numbers else 0
    made = (
        f'{classes_from} names {len(names)} classes, but masks have values up to {last}: they are called by their number'
        if names and classes_from
        else f'no file names {last + 1} classes (classes.txt): they are called by their number'
    )
    is_gapless = numbers == [*range(len(numbers))]
    return Meaning(tuple(f'class_{n}' for n in numbers), values, is_plain=is_gapless, notes=(made,))


class _Seen(NamedTuple):
    """Values of masks."""

    pixels: Counter[Colour | int]  # of each value
    by_colour: bool  # palettes differ, so that they must be read as colours
    coloured: bool  # some mask has colours
    together: bool  # some mask has 1 and 255
    of_mask: dict[Path, dict[Colour | int, int]]  # pixels in masks of numbers of 8 bits


def _collect_values(masks: Sequence[Path], *, by_colour: bool, blurred: bool, are_named: bool) -> _Seen:
    """Read all masks. `are_named`: a file names the colours, so that equal channels are a colour and not a number.

    Raises AnnotationError.
    """
    pixels, together, errors, of_mask = Counter[Colour | int](), False, LeftOut(), dict[Path, dict[Colour | int, int]]()
    palette, kinds = dict[int, Colour](), dict[str, Path]()  # kinds: a mask of each
    for mask in masks:
        with errors.catch(), open_image(mask) as picture:
            content = _content(picture, mask, by_colour=by_colour)
            if picture.mode == 'P' and not by_colour and _contradicts(palette, picture, content):
                return _collect_values(masks, by_colour=True, blurred=blurred, are_named=are_named)
            if content.ndim == 3 and not are_named and (content == content[..., :1]).all():
                content = content[..., 0]  # numbers in each of three channels
            own = _values(content)
            if content.ndim == 3:
                kinds['colours'] = mask
            elif picture.mode in ('P', 'L') and own.keys() - {0, VOID}:
                kinds[picture.mode] = mask
            together |= {1, VOID} <= own.keys()
            if picture.mode in ('P', 'L') and not by_colour:
                of_mask[mask] = own
            pixels.update(own)
        if len(pixels) > FEW * 4 and not blurred:
            raise AnnotationError(f'{mask}: has more than {FEW * 4} colours or numbers, so it is not a mask')
    if not pixels:
        raise AnnotationError(errors[0])
    if {'colours', 'P'} <= kinds.keys() and not by_colour:
        return _collect_values(masks, by_colour=True, blurred=blurred, are_named=are_named)
    if {'colours', 'L'} <= kinds.keys():
        raise AnnotationError(f'{kinds["L"]} holds numbers, but {kinds["colours"]} colours: which of them are the classes?')
    return _Seen(pixels, by_colour, 'colours' in kinds, together, of_mask)


def _contradicts(palette: dict[int, Colour], picture: PIL.Image.Image, content: npt.NDArray[np.uint8 | np.uint16]) -> bool:
    """True if a number has another colour in this mask than in `palette`, to which its other colours are added."""
    own = np.array(picture.getpalette('RGB') or [], np.uint8).reshape(-1, 3)
    for number in np.unique(content).tolist():
        red, green, blue = own[number].tolist() if number < len(own) else (0, 0, 0)
        if palette.setdefault(number, (red, green, blue)) != (red, green, blue):
            return True
    return False


def _are_levels(numbers: Sequence[int]) -> bool:
    """True for a few numbers so far apart, and from 255, that they are levels of grey, as people draw them."""
    gaps = [later - earlier for earlier, later in pairwise([*numbers, VOID])]
    return 2 <= len(numbers) <= LEVELS[0] and min(gaps) >= LEVELS[1]


def _are_two(greys: Collection[int], together: bool) -> bool:
    """True for 0 and one other value, or masks of 0 and 1 beside others of 0 and 255.

    1 and 255 `together` are a class and ignored pixels.
    """
    return (len(greys) <= 2 and max(greys) > 1 and (0 in greys or VOID in greys)) or ({*greys} == {0, 1, VOID} and not together)


def _are_nearly_two(pixels: Counter[Colour | int]) -> bool:
    """True if pixels are grey, and few of them between black and white."""
    greys = {value if isinstance(value, int) else value[0]: count for value, count in pixels.items()}
    middle = sum(count for grey, count in greys.items() if MIDDLE[0] <= grey < MIDDLE[1])
    has_colours = any(isinstance(value, tuple) and len({*value}) > 1 for value in pixels)
    return not has_colours and middle <= MOST_MIDDLE * pixels.total() and not 0 < max(greys) < MIDDLE[1]


def _check_two_values(pixels: Counter[Colour | int], mask: Path) -> None:
    """Raise AnnotationError for JPEG masks of more than black and white: their values have changed."""
    if not _are_nearly_two(pixels):
        raise AnnotationError(f'{mask}: JPEG has changed the values of the masks; save them as PNG')


def _known_classes(masks: Sequence[Path], found: Collection[Colour | int]) -> Meaning | None:
    """The classes of Cityscapes and ADE20K, known by the names of their files; None for other masks."""
    stems = [mask.stem.lower() for mask in masks]
    numbers = {value for value in found if isinstance(value, int)}
    cities = [match for stem in stems if (match := CITY.fullmatch(stem))]
    if len(cities) == len(masks):
        is_trained = cities[0][1] is not None
        if other := [mask for mask, match in zip(masks, cities, strict=True) if (match[1] is not None) != is_trained]:
            raise AnnotationError(
                f'{other[0]} and {masks[0]}: the numbers of labelIds and labelTrainIds differ; use one of them'
            )
        of_city: dict[Colour | int, int] = {own: n for n, own in enumerate(CITYSCAPES_CLASSES.values())}
        of_training: dict[Colour | int, int] = {n: n for n in range(len(CITYSCAPES_CLASSES))}
        values = of_training if is_trained else of_city
        note = f'named like Cityscapes, so its {len(values)} classes are used and other numbers ignored'
        is_plain = is_trained and numbers <= {*values, VOID}
        return Meaning(tuple(CITYSCAPES_CLASSES), values, is_plain=is_plain, ignores_others=True, notes=(note,))
    if all(map(SCENE.fullmatch, stems)) and numbers == {*found} and max(numbers, default=0) <= len(ADE20K_CLASSES):
        note = f'named like ADE20K, so its {len(ADE20K_CLASSES)} classes are used; 0 is ignored'
        return Meaning(
            ADE20K_CLASSES, {n + 1: n for n in range(len(ADE20K_CLASSES))}, is_plain=False, ignores_others=True, notes=(note,)
        )
    return None


def _assign_colours(found: Iterable[Colour | int], named: Mapping[Colour, str], classes_from: Path | None) -> Meaning:
    """Classes by the names that the file `classes_from` has for colours, if it has some. Raises AnnotationError."""
    colours = {value if isinstance(value, tuple) else (value, value, value) for value in found}
    if named:
        black = (0, 0, 0)
        if black in colours and black not in named and BACKGROUND not in named.values():
            named = {black: BACKGROUND} | {**named}
        names = tuple(dict.fromkeys(name for name in named.values() if name.lower() not in VOID_NAMES))
        values: dict[Colour | int, int] = {colour: names.index(name) for colour, name in named.items() if name in names}
        unknown = [format_colour(colour) for colour in colours if colour not in named]
        if unknown and not any(name != BACKGROUND for colour, name in named.items() if colour in colours and name in names):
            raise AnnotationError(
                f'{classes_from}: names none of the colours in the masks, {", ".join(unknown[:5])}; correct it, or name the '
                'folder of other masks with --masks'
            )
        notes = (f'colours that no file names are ignored: {", ".join(unknown[:5])}',) if unknown else ()
        return Meaning(names, values, is_plain=False, notes=notes)
    if len(colours) > FEW:
        raise AnnotationError(
            f'masks have {len(colours)} colours and no file names them (lines `red green blue name` in colors.txt)'
        )
    ordered = sorted(colours, key=lambda colour: (colour != (0, 0, 0), colour))
    names = tuple(BACKGROUND if colour == (0, 0, 0) else format_colour(colour) for colour in ordered)
    note = 'no file names the colours (lines `red green blue name` in colors.txt): classes are called by their colour'
    return Meaning(names, {colour: place for place, colour in enumerate(ordered)}, is_plain=False, notes=(note,))


def read_label_map(mask: Path, meaning: Meaning, image: Path) -> LabelMap:
    """Read a mask as label map [H, W] of the size of its image. Raises AnnotationError."""
    with open_image(mask) as stored:
        content = _content(PIL.ImageOps.exif_transpose(stored), mask, by_colour=meaning.by_colour)
    if meaning.is_blurred:
        labels = (content.reshape(*content.shape[:2], -1)[..., 0] > 127).astype(np.uint8)
    elif not any(isinstance(value, tuple) for value in meaning.values):
        table = np.full(1 << 16, VOID, np.uint8)
        for value, label in meaning.values.items():
            table[value] = label
        if content.ndim == 3 and (content != content[..., :1]).any():
            raise AnnotationError(f'{mask}: is in colours, but the other masks hold numbers')
        labels = table[content if content.ndim == 2 else content[..., 0]]
        _check_known(content, meaning, mask)
    else:
        colours, place, counts = count_colours(
            (content if content.ndim == 3 else np.repeat(content[..., None], 3, 2)).astype(np.uint8)
        )
        unknown = [(count, colour) for count, colour in zip(counts, colours, strict=True) if colour not in meaning.values]
        if meaning.is_complete and unknown:
            raise AnnotationError(_describe_unknown(mask, meaning, *unknown[0]))
        labels = np.array([meaning.values.get(colour, VOID) for colour in colours], np.uint8)[place]
    size, (height, width) = size_of(image), labels.shape
    if (width, height) != size:
        if not 0.98 < (width / size[0]) / (height / size[1]) < 1.02:
            raise AnnotationError(f'{mask}: is {width} x {height} pixels, but {image} is {size[0]} x {size[1]}')
        labels = cv2.resize(labels, size, interpolation=cv2.INTER_NEAREST).astype(np.uint8, copy=False)
    return labels


def _check_known(content: npt.NDArray[np.uint8 | np.uint16], meaning: Meaning, mask: Path) -> None:
    """Raise AnnotationError for a number that no other mask has, as JPEG makes them."""
    unknown = set() if meaning.ignores_others else {*np.unique(content).tolist()} - {*meaning.values, VOID}
    if unknown:
        listed = ', '.join(map(str, sorted(unknown)[:10]))
        cure = '; JPEG changes values, save it as PNG' if mask.suffix.lower() in JPEG else ''
        raise AnnotationError(f'{mask}: has the values {listed}, which the other masks do not have{cure}')


def name_colours(named: Mapping[Colour, str]) -> Meaning:
    """Classes by the names of their colours, in that order; a colour called void is none, another one is an error."""
    names = tuple(dict.fromkeys(name for name in named.values() if name != VOID_NAME))
    values: dict[Colour | int, int] = {
        colour: VOID if name == VOID_NAME else names.index(name) for colour, name in named.items()
    }
    return Meaning(names, values, is_plain=False, by_colour=True, is_complete=True)


def _describe_unknown(mask: Path, meaning: Meaning, count: int, colour: Colour) -> str:
    """Message about a colour of a mask that is not a class, with the nearest one that is."""
    known = [value for value in meaning.values if isinstance(value, tuple)]
    nearest = min(known, key=lambda each: sum((a - b) ** 2 for a, b in zip(each, colour, strict=True)))
    place = meaning.values[nearest]
    name = VOID_NAME if place == VOID else meaning.class_names[place]
    return (
        f'{mask}: {count} pixels are {format_colour(colour)}, which is not a class (nearest: {name} {format_colour(nearest)})'
        + ('; JPEG changes colours, keep masks as PNG' if mask.suffix.lower() in ('.jpg', '.jpeg') else '')
    )


def _content(picture: PIL.Image.Image, mask: Path, *, by_colour: bool) -> npt.NDArray[np.uint8 | np.uint16]:
    """[H, W] of a palette or grey image, else [H, W, 3]. Raises AnnotationError."""
    if by_colour:
        return np.array(picture.convert('RGB'))
    if picture.mode in ('1', 'L', 'P'):
        return np.array(picture.convert('L') if picture.mode == '1' else picture)
    if picture.mode.startswith(('I', 'F')):  # 16 bits, or fractions
        values = np.asarray(picture)
        if picture.mode == 'F' and (values != values.round()).any():
            fraction = values[values != values.round()][0]
            raise AnnotationError(f'{mask}: has fractions such as {fraction:g}; a mask holds whole numbers')
        if values.min() < 0 or values.max() >= 1 << 16:
            raise AnnotationError(f'{mask}: has numbers from {values.min()} to {values.max()}; 0 to 65535 can be used')
        return values.astype(np.uint16 if values.max() > VOID else np.uint8)
    colours = np.array(picture.convert('RGB'))
    if 'A' in picture.mode and (colours == colours[0, 0]).all() and len(set(picture.getchannel('A').getextrema())) > 1:
        raise AnnotationError(f'{mask}: has one colour, and shows something only by its transparency; save it without')
    return colours


def _values(content: npt.NDArray[np.uint8 | np.uint16]) -> dict[Colour | int, int]:
    """Count the pixels of each value."""
    if content.ndim == 3:
        colours, _, of_each = count_colours(content.astype(np.uint8))
        return dict(zip(colours, of_each, strict=True))
    values, counts = np.unique(content, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
