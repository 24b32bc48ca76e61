"""Input pipelines as plain OpenCV, Pillow and NumPy in one process: the other side of input_pipeline.py.

The transforms and their order are those of the original projects' recipes, so are the libraries; each function makes a whole
batch from files, normalised float32 [B, 3, H, W] and its targets. Written for this comparison.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageEnhance

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

GREY = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # mean and standard deviation
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def decoded(path: Path) -> Array:
    image = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def normalised(image: Array, mean: Sequence[float], std: Sequence[float]) -> Array:
    image = image.astype(np.float32) / 255.0
    image -= np.array(mean, np.float32)
    image /= np.array(std, np.float32)
    return image


def first(image: Array) -> Array:
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def distorted(image: Array, rng: Rng, most: float) -> Array:
    """Brightness, contrast, saturation and hue in random order, each every second time, by Pillow."""
    for number in rng.permutation(4):
        if rng.random() >= 0.5:
            continue
        picture = Image.fromarray(image)
        if number == 3:
            hsv = np.array(picture.convert('HSV'))
            hsv[..., 0] = hsv[..., 0] + np.uint8(int(rng.uniform(-18, 18)) % 256)
            image = np.asarray(Image.fromarray(hsv, mode='HSV').convert('RGB'))
        else:
            change = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[number]
            image = np.asarray(change(picture).enhance(rng.uniform(1 - most, 1 + most)))
    return image


def flipped(rng: Rng) -> bool:
    return bool(rng.random() < 0.5)


# Segmentation: PP-LiteSeg on Cityscapes.


def segmentation(files: Sequence[tuple[Path, Path]], rng: Rng) -> tuple[Array, Array]:
    images, labels = zip(*(street(image, label, rng) for image, label in files), strict=True)
    return np.stack(images), np.stack(labels)


def street(image_path: Path, label_path: Path, rng: Rng) -> tuple[Array, Array]:
    """Scaled by 0.125 to 1.5, cut to 1024 x 512, mirrored, distorted."""
    image, label = decoded(image_path), np.asarray(Image.open(label_path))
    factor = float(rng.choice(np.arange(0.125, 1.501, 0.125)))
    size = round(image.shape[1] * factor), round(image.shape[0] * factor)
    image = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
    label = cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)
    down, right = max(0, 512 - image.shape[0]), max(0, 1024 - image.shape[1])
    if down or right:
        image = cv2.copyMakeBorder(image, 0, down, 0, right, cv2.BORDER_CONSTANT, value=(127.5,) * 3)
        label = cv2.copyMakeBorder(label, 0, down, 0, right, cv2.BORDER_CONSTANT, value=255)
    top, left = (int(rng.integers(0, have - want + 1)) for have, want in zip(label.shape, (512, 1024), strict=True))
    image, label = image[top : top + 512, left : left + 1024], label[top : top + 512, left : left + 1024]
    if flipped(rng):
        image, label = image[:, ::-1], label[:, ::-1]
    image = distorted(np.ascontiguousarray(image), rng, 0.5)
    return first(normalised(image, *GREY)), label.astype(np.int64)


# Detection: PP-YOLOE on COCO.


def detection(files: Sequence[tuple[Path, Array]], rng: Rng) -> tuple[Array, list[Array]]:
    """`files`: images with their boxes [N, 4] xyxy. All images of a batch get one size."""
    side = int(rng.choice(np.arange(320, 769, 32)))
    interpolation = int(rng.integers(0, 5))
    images, boxes = zip(*(photograph(path, own, side, interpolation, rng) for path, own in files), strict=True)
    most = max(len(own) for own in boxes)
    return np.stack(images), [np.pad(own, ((0, most - len(own)), (0, 0))) for own in boxes]


def photograph(path: Path, boxes: Array, side: int, interpolation: int, rng: Rng) -> tuple[Array, Array]:
    """Distorted, laid on a larger canvas, cut, mirrored, resized."""
    image = distorted(decoded(path), rng, 0.5)
    if flipped(rng):
        image, boxes = expanded(image, boxes, rng)
    image, boxes = cut(image, boxes, rng)
    if flipped(rng):
        image, boxes = image[:, ::-1, :], boxes[:, [2, 1, 0, 3]] * (-1, 1, -1, 1) + (image.shape[1], 0, image.shape[1], 0)
    x, y = side / image.shape[1], side / image.shape[0]
    image = cv2.resize(np.ascontiguousarray(image), None, fx=x, fy=y, interpolation=interpolation)
    return first(normalised(image, *IMAGENET)), boxes * (x, y, x, y)


def expanded(image: Array, boxes: Array, rng: Rng) -> tuple[Array, Array]:
    ratio = rng.uniform(1, 4)
    H, W = int(image.shape[0] * ratio), int(image.shape[1] * ratio)
    top, left = int(rng.integers(0, H - image.shape[0] + 1)), int(rng.integers(0, W - image.shape[1] + 1))
    canvas = np.ones((H, W, 3), np.uint8) * np.array((123.675, 116.28, 103.53), np.uint8)
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    return canvas, boxes + np.array([left, top, left, top], np.float32)


def cut(image: Array, boxes: Array, rng: Rng) -> tuple[Array, Array]:
    """A part in which some box lies with a drawn IoU at least."""
    H, W = image.shape[:2]
    for least in rng.permutation([-1.0, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9]):
        if least < 0:
            return image, boxes
        for _ in range(50):
            scale = rng.uniform(0.3, 1)
            ratio = np.sqrt(rng.uniform(max(0.5, scale**2), min(2.0, scale**-2)))
            h, w = int(H * scale / ratio), int(W * scale * ratio)
            top, left = int(rng.integers(0, max(1, H - h))), int(rng.integers(0, max(1, W - w)))
            part = np.array([left, top, left + w, top + h], np.float32)
            sides = np.minimum(boxes[:, 2:], part[2:]) - np.maximum(boxes[:, :2], part[:2])
            overlap = np.prod(np.maximum(sides, 0), axis=1)
            union = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + w * h - overlap
            if (overlap / union).max() < least:
                continue
            middle = (boxes[:, :2] + boxes[:, 2:]) / 2
            inside = np.logical_and(part[:2] <= middle, middle < part[2:]).all(axis=1)
            if inside.any():
                kept = np.concatenate([np.maximum(boxes[:, :2], part[:2]), np.minimum(boxes[:, 2:], part[2:])], axis=1)
                return image[top : top + h, left : left + w], kept[inside] - (left, top, left, top)
    return image, boxes


# Recognition: CRNN on words.


def recognition(files: Sequence[tuple[Path, str]], rng: Rng) -> tuple[Array, list[list[int]]]:
    """32 high, up to 100 wide; letters and digits as numbers."""
    alphabet = {character: number for number, character in enumerate('0123456789abcdefghijklmnopqrstuvwxyz', 1)}
    images, texts = [], []
    for path, text in files:
        image = decoded(path)
        width = min(100, int(np.ceil(32 * image.shape[1] / image.shape[0])))
        shown = cv2.resize(image, (width, 32)).astype(np.float32).transpose(2, 0, 1) / 255
        shown -= 0.5
        shown /= 0.5
        canvas = np.zeros((3, 32, 100), np.float32)
        canvas[:, :, :width] = shown
        images.append(canvas)
        texts.append([alphabet[character] for character in text.lower() if character in alphabet])
    return np.stack(images), texts


# Tables: SLANet on PubTabNet.


def table(files: Sequence[tuple[Path, str]], rng: Rng) -> tuple[Array, list[list[str]]]:
    """`files`: images with their lines of JSON. The longer side becomes 488, the rest of the square is filled up."""
    images, structures = [], []
    for path, line in files:
        html = json.loads(line)['html']
        image = decoded(path)
        ratio = 488 / max(image.shape[:2])
        image = cv2.resize(image, (int(image.shape[1] * ratio), int(image.shape[0] * ratio)))
        canvas = np.zeros((488, 488, 3), np.float32)
        canvas[: image.shape[0], : image.shape[1]] = normalised(image, *IMAGENET)
        images.append(first(canvas))
        tokens = ['<td></td>' if token == '<td>' else token for token in html['structure']['tokens'] if token != '</td>']
        boxes = np.zeros((500, 4), np.float32)
        for number, cell in enumerate(html['cells']):
            boxes[number] = np.array(cell.get('bbox', (0, 0, 0, 0)), np.float32) * ratio / 488
        structures.append(tokens)
    return np.stack(images), structures
