"""A trained network in each form in which it is run: PyTorch eager and compiled, ONNX, OpenVINO, and both in 8-bit integers.

    python benchmarks/deployment.py [--out runs/deployment] [--only NAME ...] [--rounds 5]

The small network of each family is trained on the data that come with the package, unless its run is in the folder already. The
recogniser and the text detector of PP-OCRv4 are not trained: their published weights are there when rapidocr_onnxruntime is.
Every form sees the same prepared images, one at a time, on one core, in turns with the others; the time is that of the network
alone. The metric is that of the run on its evaluation set, read from the outputs by `phalanx.runtime` in every case.
Writes deployment.json and deployment.md.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import phalanx
from phalanx.bench.show import format_markdown, format_text
from phalanx.deploy.deployed import evaluate
from phalanx.deploy.export import Options, export, run_network
from phalanx.deploy.formats import FORMATS
from phalanx.deploy.writing import ExportError
from phalanx.engine.job import Job, open_job
from phalanx.engine.loader import evaluation_draws
from phalanx.runtime import Model
from phalanx.runtime.prepare import Floats
from phalanx.runtime.session import Run, open_model
from phalanx.weights.onnx_file import characters_in
from phalanx.weights.reading import load_weights

IMAGES = 20  # of the evaluation set, that are timed
WARMUP = 3
EAGER = 'PyTorch, eager'
FILES = {  # form -> format and precision of `phalanx export`
    'ONNX': ('onnx', 'fp32'),
    'OpenVINO': ('openvino', 'fp32'),
    'ONNX, int8': ('onnx', 'int8'),
    'OpenVINO, int8': ('openvino', 'int8'),
}


@dataclass(frozen=True)
class Subject:
    """A network, the recipe that says on what it is evaluated, and how it gets its weights."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()  # of the recipe
    published: str | None = None  # the file of rapidocr_onnxruntime with its weights; None: it is trained


@dataclass(frozen=True)
class Measured:
    """A form of a network; times in milliseconds an image, of `shape` [C, H, W] the first time and others as they come."""

    subject: str
    form: str
    shape: tuple[int, ...]
    metric: str
    value: float
    median_ms: float
    p95_ms: float


SUBJECTS = (
    Subject('PP-LiteSeg-STDC1', 'pp_liteseg_digits'),
    Subject('PP-YOLOE-s', 'ppyoloe_digits'),
    Subject('CRNN', 'crnn_digits'),
    Subject('SLANet', 'slanet_rendered', ('train.steps=600', 'data.eval_tables=50', 'image_size=256')),
    Subject('DB-MobileNetV3', 'db_pages'),
    Subject(
        'PP-OCRv4 mobile recogniser',
        'ch_PP-OCRv3_rec',
        (
            'model={name: svtr_lcnetv3, merged: true}',
            'loss={name: ctc}',
            'concatenate=null',
            'characters={dictionary: OUT/characters.txt, space: true}',
            'data={name: rendered, words: OUT/words.txt, random_share: 0, train_lines: 1000, eval_lines: 300}',
        ),
        'ch_PP-OCRv4_rec_infer.onnx',
    ),
    Subject(
        'PP-OCRv4 mobile text detector',
        'ch_PP-OCRv4_det_mobile',
        ('data={name: drawn_pages, train_pages: 64, eval_pages: 100, page_size: [640, 640]}', 'model.backbone.merged=true'),
        'ch_PP-OCRv4_det_infer.onnx',
    ),
)


def weights_of(subject: Subject, out: Path) -> Path | None:
    """The published file of a subject, or None for one whose run has its weights, which is trained if it is not there."""
    if subject.published is None:
        run = out / subject.recipe
        if not (run / 'summary.json').is_file():
            words = ['train', subject.recipe, '--save_dir', str(run), '--set', 'device=cpu', *subject.settings]
            subprocess.run([sys.executable, '-m', 'phalanx', *words], check=True)
        return None
    spec = find_spec('rapidocr_onnxruntime')
    if spec is None or spec.origin is None:
        raise FileNotFoundError('rapidocr_onnxruntime, which has its weights, is not installed')
    file = Path(spec.origin).parent / 'models' / subject.published
    write_words(file, out)
    return file


def write_words(recogniser: Path, out: Path) -> None:
    """The characters of the published recogniser, and words to draw: those of Phalanx's licence."""
    if characters := characters_in(recogniser):
        (out / 'characters.txt').write_text('\n'.join(characters[:-1]), encoding='utf-8')  # the recipe adds the space
        licence = Path(__file__).parents[1].joinpath('LICENSE').read_text(encoding='utf-8')
        (out / 'words.txt').write_text('\n'.join(sorted(set(re.findall('[A-Za-z]{3,}', licence)))), encoding='utf-8')


def forms(job: Job, weights: Path | None, folder: Path) -> Iterator[tuple[str, Mapping[str, Any] | None, Run]]:
    """Each form of a network: its name, what its file says about itself (None: there is no file), and what runs it.

    A form that a network does not have is said and left out.
    """
    for form, (format_, precision) in FILES.items():
        file = folder / f'{precision}{FORMATS[format_]}'
        try:
            export(job, file, Options(weights, precision=precision))  # type: ignore[arg-type]
        except ExportError as error:
            print(f'{form}: {error}', file=sys.stderr)
            continue
        yield form, *open_model(file, 1)
    model = job.task.model()
    load_weights(model, weights or job.folder, raw=job.recipe.ema is None)
    exported = job.task.export(model.eval())

    def by_torch(network: Any) -> Run:
        return lambda images: dict(zip(exported.outputs, run_network(network, torch.from_numpy(images)), strict=True))

    yield EAGER, None, by_torch(exported.network)
    yield 'PyTorch, compiled', None, by_torch(torch.compile(exported.network))


def images_of(job: Job, model: Model) -> list[Floats]:
    """The first images of the evaluation set as the network takes them, each a batch of one."""
    dataset = job.task.dataset('eval')
    draws = [draw for (draw,) in evaluation_draws(min(IMAGES, len(dataset)), 1, job.recipe.train.seed, 0, 1)]
    return [model.family.prepare(dataset.original(draw))[None] for draw in draws]


def measure(subject: Subject, out: Path, rounds: int) -> list[Measured]:
    """Every form that the network of a subject has. Raises FileNotFoundError when its weights are not here."""
    # the network in every form: eager, compiled, and each exported file
    weights = weights_of(subject, out)
    settings = [setting.replace('OUT', str(out)) for setting in subject.settings]
    folder = out / subject.recipe
    job = open_job(subject.recipe, [(one, one) for one in ('device=cpu', *settings)], folder)
    folder.mkdir(exist_ok=True)
    found = list(forms(job, weights, folder))
    guide = next(guide for _, guide, _ in found if guide is not None)
    models = {form: Model(guide if own is None else own, run) for form, own, run in found}
    images = images_of(job, models[EAGER])
    # forms take turns, so that a change in load hits all of them
    seconds: dict[str, list[float]] = {form: [] for form in models}
    for turn in range(rounds + 1):
        for form, model in models.items():
            for image in images[:WARMUP]:
                model.run(image)
            for image in images:
                begin = time.perf_counter()
                model.run(image)
                if turn > 0:  # in the first, sizes are met for the first time
                    seconds[form].append(time.perf_counter() - begin)
    # the metric of each form on the evaluation set
    rows = []
    for form, model in models.items():
        evaluation, _ = evaluate(job, model, folder / 'fp32.onnx', 0, batches=(1,))
        median, p95 = (float(value) for value in np.percentile(seconds[form], (50, 95)) * 1000)
        name = job.task.main_metric
        rows.append(Measured(subject.name, form, images[0].shape[1:], name, evaluation.metrics[name], median, p95))
        print(rows[-1], file=sys.stderr)
    return rows


def table(rows: list[Measured]) -> list[dict[str, str]]:
    """The rows as people read them, each form beside eager float32 of the same network."""
    eager = {row.subject: row for row in rows if row.form == EAGER}
    return [
        {
            'network': f'{row.subject}, {" x ".join(map(str, row.shape[1:]))}' if row.form == 'ONNX' else '',
            'form': row.form,
            'median': f'{row.median_ms:.2f} ms',
            'p95': f'{row.p95_ms:.2f} ms',
            'times as fast': f'{eager[row.subject].median_ms / row.median_ms:.2f}',
            'metric': f'{row.metric} {row.value:.4f}',
            'points': f'{100 * (row.value - eager[row.subject].value):+.2f}',
        }
        for row in rows
    ]


def processor() -> str:
    """The name of the processor, and its instructions for 8-bit networks."""
    text = Path('/proc/cpuinfo').read_text() if Path('/proc/cpuinfo').is_file() else ''
    name = re.search(r'model name\s*: (.*)', text)
    fast = [flag for flag in ('avx2', 'avx512f', 'avx512_vnni', 'avx_vnni', 'amx_int8') if re.search(rf'\b{flag}\b', text)]
    return f'{name[1] if name else platform.machine()} ({", ".join(fast)})'


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--out', type=Path, default=Path('runs/deployment'))
    parser.add_argument('--only', nargs='+', metavar='NAME', help='names of networks, or their beginnings')
    parser.add_argument('--rounds', type=int, default=5, help='how often each form is timed on each image')
    given = parser.parse_args()
    torch.set_num_threads(1)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Measured] = []
    for subject in SUBJECTS:
        if given.only and not subject.name.startswith(tuple(given.only)):
            continue
        try:
            rows += measure(subject, out, given.rounds)
        except FileNotFoundError as error:
            print(f'{subject.name}: {error}', file=sys.stderr)
            continue
        about = {'phalanx': phalanx.__version__, 'torch': torch.__version__, 'processor': processor()}
        record = {**about, 'date': f'{datetime.now(UTC):%Y-%m-%d}', 'rows': [asdict(row) for row in rows]}
        (out / 'deployment.json').write_text(json.dumps(record, indent=1) + '\n')
        (out / 'deployment.md').write_text(f'{record["date"]}, one core, {processor()}\n\n{format_markdown(table(rows))}\n')
    print(format_text(table(rows)) if rows else 'nothing was measured')


if __name__ == '__main__':
    main()
