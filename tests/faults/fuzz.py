"""Mutated inputs for all readers: `python -m faults.fuzz --inputs 1000000 --seed 0` (with `PYTHONPATH=tests`), `make fuzz`.

A reader gives a result or its own error with the name of the file. Anything else is unexpected: its input is kept in `--keep`,
and the exit status is 1. The same seed gives the same inputs. (tests/property has a slower trial that shrinks what fails.)
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import random
import struct
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import PIL.Image
import safetensors.torch
import torch

from phalanx.config.read import ConfigError, Node, load_yaml, override
from phalanx.data.image import read_image, read_labels
from phalanx.data.samples import Draw, SampleError
from phalanx.families.detection import transforms as of_boxes
from phalanx.families.detection.data.coco import CocoJson
from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.detection.data.yolo import YoloText
from phalanx.families.recognition.data.label_files import LabelFiles
from phalanx.families.segmentation import transforms as of_labels
from phalanx.families.segmentation.data.file_list import FileList
from phalanx.families.table.data.pubtabnet import PubTabNet
from phalanx.families.table.models.slanet import slanet
from phalanx.families.text_detection import transforms as of_texts
from phalanx.families.text_detection.data.source import Texts
from phalanx.nn.backbones.pp_lcnet import pp_lcnet
from phalanx.report.page import PageError, write_page
from phalanx.runtime.prepare import MOST_PIXELS, TooLargeError, fit_line, fit_square
from phalanx.system.errors import CheckpointError
from phalanx.weights.checkpoint import Checkpoints, load
from phalanx.weights.finding import find
from phalanx.weights.reading import read_exported, read_weights

CLASSES = ('cat', 'dog')
OWN = (SampleError, ConfigError, CheckpointError, PageError, ValueError, FileNotFoundError)  # ValueError: of lists of samples
TOKENS = (
    *(
        b'\0',
        b'\n',
        b'"',
        b'[',
        b'{',
        b']',
        b'}',
        b'null',
        b'-1',
        b'1e999',
        b'NaN',
        b'1e20',
        b'../',
        b'/etc/passwd',
        b'\xff\xd8',
    ),
    *(
        b'&a ',
        b'*a',
        b'<<: ',
        b'!!int ',
        b'!!bool ',
        b'!!python/object:os.system',
        b'<!DOCTYPE x>',
        b'&a;',
        b'9' * 25,
        b'\t',
        b' ',
    ),
    *(
        b'\xff\xff\xff\xff',
        b'\xff\xda',
        b'\xff\xd9',
        b'IEND',
        b'Infinity',
        b'true',
        b'"\\ud800"',
        b'encoding="ANSI"',
        b':',
        b'x' * 300,
    ),
)


@dataclass(frozen=True)
class Reader:
    file: str  # that holds the input, below the folder
    examples: tuple[bytes, ...]
    read: Callable[[Path], object]


def mutated(chance: random.Random, examples: Sequence[bytes]) -> bytes:
    """One of the examples with bytes changed, taken out, doubled or put in; now and then anything at all."""
    if chance.random() < 0.02:
        return chance.randbytes(chance.randrange(300))
    data = bytearray(chance.choice(examples))
    for _ in range(chance.randint(1, 5)):
        start = chance.randint(0, len(data))
        end = min(len(data), start + chance.randint(1, 12))
        match chance.randrange(6):
            case 0 | 1 if start < len(data):
                data[start] ^= 1 << chance.randrange(8)
            case 2:
                del data[start:end]
            case 3:
                data[end:end] = data[start:end] * chance.choice((1, 1, 50))
            case 4:
                data[start : end if chance.random() < 0.5 else start] = chance.choice(TOKENS)
            case 5 if chance.random() < 0.2:
                del data[start:]
    return bytes(data)


def encoded(pixels: np.ndarray, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def first(split: object) -> None:
    """Reads the first sample of a split."""
    with suppress(FileNotFoundError):
        split.check_files()  # type: ignore[attr-defined]
    split.read(Draw(0))  # type: ignore[attr-defined]


def assigned(file: Path) -> None:
    override(Node({'a': Node([], 'x')}, 'x'), file.read_text('latin1'), str(file))


def coco_json(file: Path) -> None:
    first(CocoJson(root=file.parent, train=file.name, eval=file.name, train_images='', eval_images='').split('train'))


def pascal_voc(listed: str) -> Callable[[Path], None]:
    return lambda file: first(PascalVOC(root=file.parent, train=listed, classes=CLASSES).split('train'))


def yolo_text(file: Path) -> None:
    first(YoloText(root=file.parents[1], train='images', eval='images', classes=CLASSES).split('train'))


def yolo_names(file: Path) -> None:
    YoloText(root=file.parent, train='images', eval='images')


def file_list(file: Path) -> None:
    first(FileList(root=file.parent, classes=CLASSES).split('train'))


def label_files(file: Path) -> None:
    first(LabelFiles(root=file.parent).split('train'))


def pubtabnet(file: Path) -> None:
    first(PubTabNet(root=file.parent, train=file.name).split('train'))


def weights(file: Path) -> None:
    read_weights(find(file))


def exported() -> bytes:
    """An ONNX file of a convolution, a norm, and a linear layer in a loop."""
    make, constant = onnx.helper.make_node, onnx.numpy_helper.from_array
    inside = [
        make('Transpose', ['w_in'], ['turned'], perm=[1, 0]),
        make('MatMul', ['state', 'turned'], ['m']),
        make('Add', ['m', 'b_in'], ['sum']),
    ]
    shown = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ('n', 'go', 'state', 'w_in', 'b_in')
    ]
    body = onnx.helper.make_graph(inside, 'body', shown, shown[1:])
    numbers = {'c': np.ones((2, 1, 1, 1)), 'w': np.ones((3, 2)), **dict.fromkeys('smv', np.ones(2))}
    weights = [constant(value.astype(np.float32), name) for name, value in numbers.items()]
    nodes = [
        make('Conv', ['x', 'c'], ['y']),
        make('BatchNormalization', ['y', 's', 's', 'm', 'v'], ['z']),
        make('Constant', [], ['b'], value=constant(np.ones(3, np.float32), 'b')),
        make('Loop', ['', 'yes', 'z', 'w', 'b'], ['out', 'w_out', 'b_out'], body=body),
    ]
    made: bytes = onnx.helper.make_model(onnx.helper.make_graph(nodes, 'g', [], [], initializer=weights)).SerializeToString()
    return made


def saved_by_torch(**options: object) -> bytes:
    file = io.BytesIO()
    torch.save({'state_dict': {'w': torch.ones(2, 3), 'b': torch.zeros(2)}}, file, **options)
    return file.getvalue()


def saved_by_numpy(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, w=np.ones((2, 3), np.float32), b=np.zeros(2, np.int64))
    return file.getvalue()


def archives(content: bytes) -> tuple[bytes, ...]:
    """With one file of weights: tar, packed and not, and zip."""
    made = []
    member = tarfile.TarInfo('net/a.npz')
    member.size = len(content)
    for mode in ('w', 'w:gz'):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
            archive.addfile(member, io.BytesIO(content))
        made.append(file.getvalue()[:4096])  # the rest is padding
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as packed:
        packed.writestr('net/a.npz', content)
    return (*made, file.getvalue())


def sizes(file: Path) -> None:
    """Read a PNG file that claims the size in 8 bytes, and resize a strip of about that shape as each family does."""
    size = file.read_bytes()[:8].ljust(8, b'\0')
    claiming = bytearray(encoded(np.zeros((1, 1, 3), np.uint8), 'PNG'))
    claiming[16:24] = size
    claiming[29:33] = zlib.crc32(claiming[12:29]).to_bytes(4)
    picture = file.with_name('claiming.png')
    picture.write_bytes(claiming)
    with suppress(SampleError):
        read_image(picture)

    width, height = struct.unpack('>II', size)
    long, short = max(width, height) % 40_000 + 1, min(width, height) % 3 + 1
    strip = np.zeros((long, short, 3) if height > width else (short, long, 3), np.uint8)
    rng = np.random.default_rng(0)
    for resize in (
        lambda: fit_line(strip, (48, 320), grow=True)[0],
        lambda: fit_square(strip, 488),
        lambda: of_texts.LimitSide()(strip, Texts(), of_texts.TransformContext(rng, lambda: (strip, Texts())))[0],
        lambda: of_labels.ResizeByLong(side=1024)(strip, strip[..., 0], rng)[0],
        lambda: of_labels.Rescale(factor=2.0)(strip, strip[..., 0], rng)[0],
        lambda: of_boxes.Resize(target_size=(800, 1333), keep_ratio=True)(strip, Objects.none(), of_boxes_context(strip))[0],
    ):
        with suppress(TooLargeError):
            assert 0 < resize().size <= 3 * MOST_PIXELS


def of_boxes_context(image: np.ndarray) -> of_boxes.TransformContext:
    rng = np.random.default_rng(0)
    return of_boxes.TransformContext(rng, lambda: rng, lambda: (image, Objects.none()))


def readers(folder: Path) -> dict[str, Reader]:
    """All of them, by name; what stands beside an input is put into `folder`."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    turned = encoded(pixels, 'JPEG', exif=exif), encoded(pixels, 'JPEG', progressive=True)
    for name in ('a.png', 'train/a.png', 'images/a.png'):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(pixels, 'PNG'))
    (folder / 'b.png').write_bytes(encoded(pixels[..., 0] % 2, 'PNG'))
    (folder / 'list.txt').write_text('a.png a.xml\n')
    (folder / 'labels').mkdir()
    (folder / 'labels/a.txt').write_text('0 0.5 0.5 0.2 0.4\n')
    (folder / 'run').mkdir()
    checkpoint = Checkpoints(folder / 'run', keep=1).save(1, {'w': torch.ones(3)}, None, {'step': 1}, True)
    manifest = checkpoint / 'manifest.json'
    facts = json.loads(manifest.read_text())
    unsealed = json.dumps({**{key: value for key, value in facts.items() if key != 'seal'}, 'format': 1}).encode()
    coco = {
        'images': [{'id': 1, 'file_name': 'a.png', 'height': 9, 'width': 7}],
        'annotations': [{'id': 1, 'image_id': 1, 'category_id': 3, 'bbox': [1, 1, 3, 4], 'area': 12.0, 'iscrowd': 0}],
        'categories': [{'id': 3, 'name': 'cat'}],
    }
    voc = (
        b'<?xml version="1.0"?><annotation><size><width>7</width><height>9</height></size><object><name>cat</name><bndbox>'
        b'<xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>5</ymax></bndbox></object></annotation>'
    )
    tokens = ['<thead>', '<tr>', '<td>', '</td>', '</tr>', '</thead>']
    table = {
        'filename': 'a.png',
        'split': 'train',
        'html': {'structure': {'tokens': tokens}, 'cells': [{'tokens': ['a'], 'bbox': [1, 1, 5, 4]}]},
    }
    arrays = {'w': np.ones((2, 3), np.float32), 'b': np.zeros(2, np.int64)}
    journal = b'{"kind": "start", "name": "r", "total_steps": 2, "facts": {"a": "b"}, "ranks": [], "step": 0, "time": 1.0}\n'
    metrics = (
        b'{"kind": "train", "step": 1, "epoch": 0.5, "loss": 1.5, "terms": {"a": 1.5}, "lr": 0.1}\n'
        b'{"kind": "eval", "step": 1, "iou": 0.5}\n'
    )
    (folder / 'page').mkdir()
    (folder / 'page/journal.jsonl').write_bytes(journal)
    grey = tuple(encoded(pixels[..., 0], kind) for kind in ('PNG', 'GIF', 'TIFF', 'JPEG'))
    small = slanet(4, backbone=partial(pp_lcnet, scale=0.5), channels=8, hidden=8)
    recipe = b'task: segmentation\nmodel: {name: unet, channels: &c [8, 16]}\nother: {<<: {a: 1}, b: *c}\nlosses:\n- x: 1e-3\n'
    strips = np.zeros((1, 300, 3), np.uint8), np.zeros((300, 1, 3), np.uint8)
    shapes = pixels, *strips
    others = tuple(encoded(shape, kind) for kind in ('BMP', 'GIF', 'TIFF', 'WEBP', 'PPM') for shape in shapes)
    return {
        'JPEG': Reader('i.jpg', (*turned, *(encoded(strip, 'JPEG') for strip in strips)), read_image),
        'PNG': Reader('i.png', (*(encoded(shape, 'PNG') for shape in shapes), encoded(pixels[..., 0], 'PNG')), read_image),
        'other images': Reader('i', others, read_image),
        'sizes': Reader('size', tuple(struct.pack('>II', *size) for size in ((1, 40_000), (30_000, 1), (2**31, 2**31))), sizes),
        'label maps': Reader('l.png', grey, read_labels),
        'YAML': Reader('a.yml', (recipe,), load_yaml),
        '--set': Reader('set', (b'a.b=[1, {x: 2}]', b'a.0=!!int 5', b'b={x: &y 1, z: *y}'), assigned),
        'COCO': Reader('a.json', (json.dumps(coco).encode(),), coco_json),
        'VOC': Reader('a.xml', (voc,), pascal_voc('list.txt')),
        'VOC lists': Reader('voc.txt', (b'a.png a.xml\na\n',), pascal_voc('voc.txt')),
        'YOLO': Reader('labels/a.txt', (b'0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.2 0.2 0.9\n', b'1 0 0 1 0 1 1\n'), yolo_text),
        'data.yaml': Reader('data.yaml', (b'names: {0: cat, 1: dog}\nnc: 2\n', b'names: [cat, dog]'), yolo_names),
        'file lists': Reader('train.txt', (b'a.png b.png\na.png b.png\n',), file_list),
        'label files': Reader('rec_gt_train.txt', ('a.png\t金曜日\na.png\tword\n'.encode(),), label_files),
        'PubTabNet': Reader('t.jsonl', (json.dumps(table).encode() + b'\n',), pubtabnet),
        'pdparams': Reader('a.pdparams', (pickle.dumps(arrays, 4), pickle.dumps(arrays, 2)), weights),
        'safetensors': Reader('a.safetensors', (safetensors.torch.save({'w': torch.ones(3)}),), weights),
        'npz': Reader('a.npz', (saved_by_numpy(np.savez), saved_by_numpy(np.savez_compressed)), weights),
        'torch': Reader('a.pt', (saved_by_torch(), saved_by_torch(_use_new_zipfile_serialization=False)), weights),
        'ONNX': Reader('a.onnx', (exported(),), lambda file: read_exported(find(file), small)),
        'archives': Reader('a.tar', archives(saved_by_numpy(np.savez_compressed)), weights),
        'manifests': Reader(str(manifest.relative_to(folder)), (unsealed,), lambda file: load(file.parent)),
        'run folders': Reader('page/metrics.jsonl', (metrics,), lambda file: write_page(file.parent)),
    }


def tried(name: str, reader: Reader, folder: Path, inputs: int, seed: int) -> dict[str, tuple[int, bytes]]:
    """Wrong answers of a reader: {the error: (how often, the first input)}."""
    chance, unexpected = random.Random(f'{name} {seed}'), dict[str, tuple[int, bytes]]()
    for _ in range(inputs):
        data = mutated(chance, reader.examples)
        (folder / reader.file).write_bytes(data)
        begun, problem = time.process_time(), ''
        try:
            reader.read(folder / reader.file)
        except OWN as error:
            if str(folder) not in str(error):
                problem = f'{type(error).__name__} without the name of the file: {str(error)[:80]}'
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
            problem = f'{type(error).__name__}: {str(error)[:80]}'
        if time.process_time() - begun > 10:
            problem = 'more than 10 seconds'
        if problem:
            times, kept = unexpected.get(problem, (0, data))
            unexpected[problem] = times + 1, kept
    return unexpected


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser('faults.fuzz', description=__doc__)
    parser.add_argument('--inputs', type=int, default=1_000_000, help='of all readers together')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--keep', type=Path, default=Path('runs/fuzz'), help='the folder for inputs with an unexpected answer')
    given = parser.parse_args(words)
    warnings.simplefilter('ignore')  # Pillow's about files that are none
    failures = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        known = readers(folder)
        for name, reader in known.items():
            whole = (folder / reader.file).read_bytes() if (folder / reader.file).exists() else None
            begun = time.perf_counter()
            unexpected = tried(name, reader, folder, given.inputs // len(known), given.seed)
            if whole is not None:
                (folder / reader.file).write_bytes(whole)
            seconds = time.perf_counter() - begun
            print(
                f'{name:<14}{given.inputs // len(known):>9} inputs {seconds:8.1f} s  {len(unexpected)} unexpected', flush=True
            )
            for number, (problem, (times, data)) in enumerate(unexpected.items()):
                given.keep.mkdir(parents=True, exist_ok=True)
                kept = given.keep / f'{name.replace(" ", "_")}_{number}'
                kept.write_bytes(data)
                print(f'    {times} x {problem} (the first: {kept})')
            failures += len(unexpected)
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
