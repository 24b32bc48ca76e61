"""Waiting for data of a training that reads cold from a bucket over a bad line, beside the same training with local files.

    OMP_NUM_THREADS=1 PYTHONPATH=tests python -m processes.cold_bucket [--rounds N] [--samples N]

moto, installed beside this environment, serves the objects; a proxy lets through 20 MB/s and answers 503 to every twentieth
request. Both trainings take turns, and each from the bucket has an empty cache. `wait` is the share of the time that the
training's own log gives to waiting: of all steps, and of those after the first, in which workers start. `line` is the share
of the 20 MB/s that the training needs.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import cv2
import numpy as np

from phalanx.bench.show import format_text
from processes.test_bucket_servers import FAILING, RATE, fill, moto, size_of
from running import TINY, clean_environment, extended_python, records
from stores import Proxy, access, forward

BATCH = 4


def make_files(folder: Path, samples: int) -> None:
    """A `file_list` of JPEG photographs of 640 x 480, some 100 KB each, and their label maps."""
    rng = np.random.default_rng(0)
    for number in range(samples):
        coarse, fine = (rng.integers(0, 256, (480 // n, 640 // n, 3), np.uint8) for n in (64, 6))
        smooth = [cv2.resize(one, (640, 480), interpolation=cv2.INTER_CUBIC) for one in (coarse, fine)]
        cv2.imwrite(str(folder / f'{number}.jpg'), cv2.addWeighted(smooth[0], 0.7, smooth[1], 0.3, 0))
        cv2.imwrite(str(folder / f'{number}.png'), cv2.resize(rng.integers(0, 2, (6, 8), np.uint8), (640, 480)))
    for split, count in (('train', samples), ('val', 4)):
        (folder / f'{split}.txt').write_text('\n'.join(f'{number}.jpg {number}.png' for number in range(count)))
    (folder / 'classes.txt').write_text('even\nodd\n')


def train(root: str, folder: Path, store: dict[str, str], steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each step, and seconds of waiting in it."""
    words = [word for word in TINY if not word.startswith(('data.', 'transforms', 'train.workers', 'train.global'))]
    words += [f'data={{name: file_list, root: "{root}", train: train.txt, eval: val.txt, classes: classes.txt}}']
    words += [
        'transforms=[{name: random_padding_crop, crop_size: [192, 256]}, random_flip]',
        f'train.global_batch_size={BATCH}',
    ]
    words += ['train.workers=1', 'train.epochs=null', f'train.steps={steps}', 'evaluate.enabled=false', 'report.every=1']
    command = [sys.executable, '-m', 'phalanx', 'train', *words, '--save_dir', str(folder)]
    subprocess.run(command, env=clean_environment() | store, check=True, stdout=subprocess.DEVNULL)
    log = records(folder)
    seconds = [BATCH / line['samples_per_s'] for line in log]
    return seconds, [one * line['data_wait'] for one, line in zip(seconds, log, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--samples', type=int, default=160)
    given = parser.parse_args()
    python, steps, rows = extended_python('buckets', 'obstore', 'moto[server,s3]'), given.samples // BATCH, []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / 'files').mkdir()
        make_files(folder / 'files', given.samples)
        with moto(python, folder) as port:
            proxy = Proxy(RATE, FAILING)
            with forward(proxy, port) as address:
                fill(python, port, folder / 'files', access(address, folder))
                for number in range(given.rounds):
                    for kind, root in (('local', str(folder / 'files')), ('cold', 's3://bucket/set')):
                        store = access(address, folder / f'cache {number}')
                        seconds, waits = train(root, folder / f'{kind} {number}', store, steps)
                        rows.append(
                            {
                                'files': kind,
                                'step': f'{median(seconds):.3f} s',
                                'wait': f'{sum(waits) / sum(seconds):.1%}',
                                'without the first': f'{sum(waits[1:]) / sum(seconds[1:]):.1%}',
                                'first step': f'{seconds[0]:.1f} s',
                                'line': f'{size_of(folder / "files") / sum(seconds) / RATE:.1%}' if kind == 'cold' else '',
                            }
                        )
                        print(format_text(rows), f'{proxy.failed} of {proxy.requests} requests failed', sep='\n', flush=True)


if __name__ == '__main__':
    main()
