"""Images and label maps in files, and pictures made of them. Shapes: K colours or classes."""

from __future__ import annotations

import colorsys
import io
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from torch import Tensor

from phalanx.task import Image, SampleError

LabelMap = npt.NDArray[np.uint8]  # [H, W] class ids


def read_image(path: Path) -> Image:
    """The picture in a file, [H, W, 3] uint8 RGB; grey ones get three equal channels, transparency is dropped.

    The orientation in EXIF data is ignored, because annotations were made for the pixels as stored. Raises SampleError.
    """
    data = _bytes(path)
    if _is_cut_off(data):
        raise SampleError(f'{path}: the image is cut off ({len(data)} bytes are there)')
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise SampleError(f'{path}: cannot be decoded: {error.err}') from None
    if pixels is None:
        raise SampleError(f'{path}: is not an image that OpenCV can decode ({_beginning(data)})')
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)


def read_labels(path: Path) -> LabelMap:
    """The label map in a file, [H, W] uint8: the indices of a palette image, or the values of a grey one.

    Raises SampleError. (OpenCV would give the colours of a palette image, not its indices; hence Pillow.)
    """
    data = _bytes(path)
    try:
        with PIL.Image.open(io.BytesIO(data)) as image:
            if image.mode not in ('P', 'L'):
                raise SampleError(f'{path}: has colour mode {image.mode}; a label map is a palette (P) or 8-bit grey (L) image')
            return np.array(image)
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise SampleError(f'{path}: is not a label map that can be decoded ({error}; {_beginning(data)})') from None


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SampleError(f'{path}: cannot be read: {error.strerror}') from None
    if not data:
        raise SampleError(f'{path}: is empty')
    return data


def _beginning(data: bytes) -> str:
    return f'{len(data)} bytes, beginning with {data[:8]!r}'


def _is_cut_off(data: bytes) -> bool:
    """Whether a JPEG or PNG file ends early. OpenCV fills what is missing with grey and says nothing."""
    if data.startswith(b'\x89PNG'):
        return b'IEND' not in data[-1024:]
    if not data.startswith(b'\xff\xd8'):
        return False
    place = 2  # segments carry their length, so that the end mark of a thumbnail inside one is not mistaken for the image's
    while data[place : place + 1] == b'\xff' and data[place + 1 : place + 2] != b'\xda':
        place += 2 + int.from_bytes(data[place + 2 : place + 4], 'big')
    return data.find(b'\xff\xd9', place) < 0


def palette(K: int) -> npt.NDArray[np.uint8]:
    """K colours [K, 3] that are easy to tell apart: neighbours differ most in hue, and similar hues in brightness."""
    golden = (5**0.5 - 1) / 2
    shades = ((0.8, 0.95), (0.9, 0.5), (0.4, 0.9), (0.5, 0.6), (1, 0.75))  # saturation, value
    colours = [colorsys.hsv_to_rgb(0.6 + number * golden % 1, *shades[number % len(shades)]) for number in range(K)]
    return (np.array(colours).reshape(K, 3) * 255).round().astype(np.uint8)


def overlay(image: Image, colours: Image, alpha: float) -> Image:
    """`image` [H, W, 3] with as much of `colours` [H, W, 3] mixed in as `alpha` (0 to 1) says."""
    return cv2.addWeighted(image, 1 - alpha, colours, alpha, 0).astype(np.uint8, copy=False)


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """What a network takes: `images` [B, 3, H, W] uint8 as float32, per channel `(value / 255 - mean) / std`.

    Called where the network runs: bytes are a quarter of the data to move, and workers have no float work.
    """
    return images.float().div_(255).sub_(_per_channel(mean, images.device)).div_(_per_channel(std, images.device))


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """`values` as [3, 1, 1] on `device`; kept, because every copy to a device makes it wait."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
