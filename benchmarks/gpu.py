"""A training step of every family on this GPU, in every setting, as one table.

    make gpu                      or: python benchmarks/gpu.py [--device cpu] [--seconds 390] [--out runs/gpu]

Settings: fp32 without and with TF32, bf16, fp16, bf16 in channels last, as two ranks that share the GPU and talk over gloo,
as CUDA graphs, and compiled. Each family has a process of its own, which starts again after a cell that it did not survive.
Writes gpu.json and gpu.md. With `--device cpu` sizes are tiny: it shows that the benchmark works, and says nothing of a GPU.
"""

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from phalanx.bench.show import format_markdown
from phalanx.bench.train import format_peak_share, measure
from phalanx.engine.job import open_job
from phalanx.engine.worker import process_group

RECIPES = {  # name -> settings on a GPU, on a CPU
    'segmentation': ('pp_liteseg_digits', ('data.size=[512,1024]', 'train.global_batch_size=16'), ('data.size=[64,96]',)),
    'detection': ('ppyoloe_digits', ('data.size=[640,640]', 'train.global_batch_size=16'), ('data.size=[64,64]',)),
    'recognition': (
        'crnn_digits',
        ('image_size=[32,320]', 'train.global_batch_size=256'),
        ('image_size=[32,48]', 'train_image_sizes=[]'),
    ),
    'text detection': ('db_pages', ('data.page_size=[640,640]', 'train.global_batch_size=16'), ('data.page_size=[96,96]',)),
    'table': ('slanet_rendered', ('train.global_batch_size=24',), ('image_size=64',)),
}
SETTINGS = {
    'fp32': ('precision={dtype: fp32, tf32: false}',),
    'tf32': ('precision={dtype: fp32, tf32: true}',),
    'bf16': ('precision={dtype: bf16}',),
    'fp16': ('precision={dtype: fp16}',),
    'bf16, channels last': ('precision={dtype: bf16}', 'train.channels_last=true'),
    'bf16, two ranks': ('precision={dtype: bf16}', 'train.channels_last=true'),
    'bf16, CUDA graphs': ('precision={dtype: bf16}', 'train.channels_last=true', 'train.cuda_graph=true'),
    'bf16, compiled': ('precision={dtype: bf16}', 'train.channels_last=true', 'train.compile=true'),  # the longest, so the last
}
RANKS = {'bf16, two ranks': 2}
COLUMNS = ('samples_per_s', 'peak_memory_mb', 'share_of_peak')
SHOWN = ('samples/s', 'MiB', 'share of peak')
SPAWN = multiprocessing.get_context('spawn')  # a forked process cannot use CUDA


class Measuring:
    """Processes, one per rank, that measure the cells of one family in turn."""

    def __init__(self, family: str, device: str, ranks: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        ends = [SPAWN.Pipe() for _ in range(ranks)]
        self.pipes = [own for own, _ in ends]
        self.processes = [
            SPAWN.Process(target=answer, args=(theirs, family, device, rank, ranks, self.folder.name), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process, (_, theirs) in zip(self.processes, ends, strict=True):
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe

    def ask(self, setting: str, seconds: float) -> dict[str, Any]:
        """The figures of rank 0 in a setting within `seconds`, or the reason for none; its processes are of no use then."""
        try:
            for pipe in self.pipes:
                pipe.send(setting)
            return self.pipes[0].recv() if self.pipes[0].poll(seconds) else {'why': f'longer than {seconds:.0f} s'}
        except (EOFError, ConnectionError):
            return {'why': 'its process has died'}

    def end(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()  # at which the process ends, if it is not in the middle of something
            process.join(5)
            process.kill()
            process.join()
        self.folder.cleanup()


def answer(pipe: Connection, family: str, device: str, rank: int, ranks: int, folder: str) -> None:
    """Measures the settings that come through `pipe`, as one of the ranks."""
    if ranks > 1:  # NCCL takes one rank a device; over gloo the exchanges can be seen at work where there is one GPU
        os.environ |= {'RANK': str(rank), 'WORLD_SIZE': str(ranks), 'LOCAL_RANK': '0'}
        rendezvous = f'file://{folder}/rendezvous'
        torch.distributed.init_process_group('gloo', init_method=rendezvous, rank=rank, world_size=ranks)
        torch.set_num_threads(1)  # as a launcher gives them
    recipe, on_gpu, on_cpu = RECIPES[family]
    sizes = (*on_cpu, 'train.global_batch_size=4', 'train.workers=0') if device == 'cpu' else (*on_gpu, 'train.workers=4')
    with process_group(device) as place, contextlib.suppress(EOFError, ConnectionError):  # when nobody asks any more
        while True:
            words = (*sizes, *SETTINGS[pipe.recv()], f'device={device}')
            try:
                job = open_job(recipe, [(word, word) for word in words])
                figures, _ = measure(job, place, steps=2 if device == 'cpu' else 20, warmup=1)
                found = {name: figures[name] for name in COLUMNS}
            except (RuntimeError, ValueError) as error:  # out of memory, for instance
                found = {'why': (str(error).splitlines() or [repr(error)])[0][:200]}
            if rank == 0:
                pipe.send(found)
            gc.collect()
            torch.cuda.empty_cache()
            torch.compiler.reset()


def shown(row: dict[str, Any]) -> dict[str, str]:
    figures = [row.get('why', ''), '', '']
    if 'why' not in row:
        figures = [f'{row["samples_per_s"]:.1f}', f'{row["peak_memory_mb"]:,.0f}', format_peak_share(row['share_of_peak'])]
    return {**{key: row[key] for key in ('family', 'setting')}, **dict(zip(SHOWN, figures, strict=True))}


def table(device: str, seconds: float) -> list[dict[str, Any]]:
    """All cells, printed as they come; those that the time does not suffice for say so."""
    end, rows = time.monotonic() + seconds, []
    at_work: dict[tuple[str, int], Measuring] = {}
    for setting, family in product(SETTINGS, RECIPES):
        key = family, RANKS.get(setting, 1)
        found = {'why': 'left out: out of time'}
        if (left := end - time.monotonic()) > 5:
            if key not in at_work:
                at_work[key] = Measuring(family, device, key[1])
            found = at_work[key].ask(setting, left)
            if 'why' in found or key[1] > 1:  # what is left of it may be in the way of others
                at_work.pop(key).end()
        rows.append({'family': family, 'setting': setting, **found})
        widths = zip(shown(rows[-1]).values(), (14, 19, 9, 7, 5), strict=True)
        print('  '.join(f'{said:>{width}}' for said, width in widths), flush=True)
    for measuring in at_work.values():
        measuring.end()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument('--seconds', type=float, default=390, help='of the whole table; cells that come later are left out')
    parser.add_argument('--out', type=Path, default=Path('runs/gpu'))
    given = parser.parse_args()
    if given.device == 'cuda' and not torch.cuda.is_available():
        sys.exit('there is no CUDA device here; --device cpu shows that the benchmark works')
    name = torch.cuda.get_device_name() if given.device == 'cuda' else f'{platform.processor() or "cpu"} (not a GPU)'
    rows = table(given.device, given.seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    head = f'{name}, torch {torch.__version__}, {time.strftime("%Y-%m-%d")}, `make gpu`'
    (given.out / 'gpu.json').write_text(json.dumps({'head': head, 'rows': rows}, indent=1) + '\n')
    (given.out / 'gpu.md').write_text(f'{head}\n\n{format_markdown([shown(row) for row in rows])}\n')
    print(f'{given.out}/gpu.md, {given.out}/gpu.json')


if __name__ == '__main__':
    main()
