"""Images to class maps. Shapes: K classes, h and w of the input, H and W of the image."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.runtime.family import Family
from phalanx.runtime.prepare import (
    Floats,
    Image,
    check_input_size,
    grey,
    normalise,
    resize,
    resize_maps,
    rounded_size,
    scaled_size,
    size_of,
)
from phalanx.runtime.session import ArtifactError, Run
from phalanx.runtime.views import flips, window_sizes, window_starts

GREY = 127.5  # padding of inputs: middle of the range
MOST_LOGITS = 2**27  # resized to the size of an image at once: 512 MB
PADDING = 127  # as a byte, where other transforms follow the padding


class Segmentation(Family):
    """Pre- and post-processing of a segmentation network."""

    def prepare(self, image: Image) -> Floats:
        transforms, size = self.preparation['transforms'], (image.shape[0], image.shape[1])
        for transform in transforms:
            size = (image.shape[0], image.shape[1])
            H, W = size_after(size, transform)
            if transform['name'] == 'Padding':
                below, beside = H - image.shape[0], W - image.shape[1]
                image = np.pad(image, ((0, below), (0, beside), (0, 0)), constant_values=grey(PADDING, image))
            else:
                image = resize(image, H, W)
        pixels = normalise(image, self.preparation)
        # Padding at the end is exact grey, between two bytes: set it after normalisation, as in training.
        if transforms and transforms[-1]['name'] == 'Padding':
            middle = normalise_grey(self.preparation['mean'], self.preparation['std'])[:, None, None]
            pixels[:, size[0] :], pixels[:, :, size[1] :] = middle, middle
        return pixels

    def outputs(self, run: Run, images: Floats) -> dict[str, Any]:
        """Logits of the images; with windows, scales or flips (`Inference`), the mean over these views."""
        inference = self.reading['inference']
        turned = flips(horizontal=inference['flip_horizontal'], vertical=inference['flip_vertical'])
        views = list(product(inference['scales'], turned))
        if views == [(1.0, ())] and window_sizes(inference) is None:
            return run(images)
        H, W = images.shape[2:]
        total = np.zeros(1, np.float32)
        # Test-time augmentation: each view is resized and flipped, and its logits flipped and resized back.
        for scale, flip in views:
            size = scaled_size((H, W), scale)
            check_input_size(*size)
            view = np.flip(np.stack([resize_maps(image, *size) for image in images]), flip)
            logits = np.flip(self._logits(run, np.ascontiguousarray(view)), flip)
            total = total + np.stack([resize_maps(np.ascontiguousarray(plane), H, W) for plane in logits])
        return {'logits': total / np.float32(len(views))}

    def _logits(self, run: Run, images: Floats) -> Floats:
        sizes = window_sizes(self.reading['inference'])
        if sizes is None:
            return run(images)['logits']  # type: ignore[no-any-return]
        (height, width), (down, across) = sizes
        H, W = images.shape[2:]
        total, count = np.zeros((1, 1, H, W), np.float32), np.zeros((H, W), np.float32)
        # Overlapping windows: logits are averaged where they overlap.
        for top, left in product(window_starts(H, height, down), window_starts(W, width, across)):
            rows, columns = slice(top, top + height), slice(left, left + width)
            logits = run(np.ascontiguousarray(images[:, :, rows, columns]))['logits']
            if total.shape[1] != logits.shape[1]:
                total = np.zeros((len(images), logits.shape[1], H, W), np.float32)
            total[:, :, rows, columns] += logits
            count[rows, columns] += 1
        return total / count

    def prediction(self, outputs: Mapping[str, Any], image: Image) -> npt.NDArray[np.uint8]:
        """Class map [H, W]: the transforms are undone in reverse order; padding is cut off, all else is resized."""
        size, sizes_before = (image.shape[0], image.shape[1]), []
        for transform in self.preparation['transforms']:
            sizes_before.append(size)
            size = size_after(size, transform)
        if 'classes' in outputs:  # chosen in the graph
            return outputs['classes']  # type: ignore[no-any-return]
        logits, steps = outputs['logits'], list(zip(self.preparation['transforms'], sizes_before, strict=True))
        # Running maximum over chunks of classes, so that the logits of all classes need not exist at full size at once.
        best, classes = np.full(image.shape[:2], -np.inf, np.float32), np.zeros(image.shape[:2], np.uint8)
        together = max(1, MOST_LOGITS // classes.size)
        for first in range(0, len(logits), together):  # in chunks of classes: logits of large images need much memory
            maps = logits[first : first + together]
            for transform, (H, W) in reversed(steps):
                maps = maps[:, :H, :W] if transform['name'] == 'Padding' else resize_maps(maps, H, W)
            numbers, values = maps.argmax(0), maps.max(0)
            is_better = values > best
            best[is_better], classes[is_better] = values[is_better], (numbers[is_better] + first).astype(np.uint8)
        return classes


def normalise_grey(mean: Sequence[float], std: Sequence[float]) -> Floats:
    """GREY after normalisation, per channel [C]."""
    return ((np.float32(GREY / 255) - np.array(mean, np.float32)) / np.array(std, np.float32)).astype(np.float32)


def size_after(size: tuple[int, int], transform: Mapping[str, Any]) -> tuple[int, int]:
    """The (height, width) of an image of `size` after a transform of the guide. Raises ArtifactError."""
    H, W = size
    match transform['name']:
        case 'Resize':
            return size_of(transform, 'target_size')
        case 'Padding':
            least = size_of(transform, 'target_size')
            return max(H, least[0]), max(W, least[1])
        case 'Rescale':
            return scaled_size(size, transform['factor'])
        case 'ResizeByLong':
            return rounded_size(size, transform['side'] / max(H, W))
    raise ArtifactError(f'images went through {transform["name"]} in evaluation, which the runtime does not know')
