"""A training step of every family on this GPU, in every setting, as one table.

    make gpu                      or: python benchmarks/gpu.py [--device cpu] [--seconds 390] [--out runs/gpu]

Settings: fp32 without and with TF32, bf16, fp16, bf16 in channels last, as two ranks that share the GPU and talk over gloo,
as CUDA graphs, and compiled. Each cell is a process of its own, or two, so one that runs out of memory costs itself alone.
Writes gpu.json and gpu.md. With `--device cpu` sizes are tiny: it shows that the benchmark works, and says nothing of a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from phalanx.cli.bench.show import as_markdown

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
# NCCL takes one rank a device; over gloo the exchanges can be seen at work where there is one GPU.
AS_RANK = """
import os, sys, torch.distributed
rank, ranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
torch.distributed.init_process_group('gloo', init_method=f'file://{sys.argv.pop(1)}', rank=rank, world_size=ranks)
from phalanx.__main__ import main
sys.exit(main())
"""
COLUMNS = ('samples_per_s', 'peak_memory_mb', 'share_of_peak')
SHOWN = ('samples/s', 'MiB', 'share of peak')


def cell(family: str, setting: str, device: str) -> list[str]:
    """The command that measures one cell."""
    recipe, on_gpu, on_cpu = RECIPES[family]
    sizes = (*on_cpu, 'train.global_batch_size=4', 'train.workers=0') if device == 'cpu' else (*on_gpu, 'train.workers=4')
    words = ['bench', 'train', recipe, '--json', '--steps', '2' if device == 'cpu' else '20', '--warmup', '1']
    return [*words, '--set', *sizes, *SETTINGS[setting], f'device={device}']


def measured(words: list[str], seconds: float, ranks: int = 1) -> dict[str, Any]:
    """What `phalanx WORDS` says as JSON, or why it says nothing; with several `ranks`, what rank 0 says."""
    environment = {**os.environ, 'PYTHONPATH': str(Path(__file__).parents[1] / 'src')}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, '-m', 'phalanx', *words]
        if ranks > 1:
            command = [sys.executable, '-c', AS_RANK, f'{folder}/rendezvous', *words]
            environment |= {'WORLD_SIZE': str(ranks), 'RANK': '0', 'LOCAL_RANK': '0', 'OMP_NUM_THREADS': '1'}
        others = [
            subprocess.Popen(
                command, env=environment | {'RANK': str(rank)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for rank in range(1, ranks)
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
        except subprocess.TimeoutExpired:
            return {'why': f'longer than {seconds:.0f} s'}
        finally:
            for other in others:
                other.kill()
                other.wait()
    if done.returncode:
        return {'why': (done.stderr.strip().splitlines() or ['no word'])[-1][:200]}
    (found,) = json.loads(done.stdout)['variants']
    return {name: found[name] for name in COLUMNS}


def shown(row: dict[str, Any]) -> dict[str, str]:
    figures = [row.get('why', ''), '', '']
    if 'why' not in row:
        figures = [f'{row["samples_per_s"]:.1f}', f'{row["peak_memory_mb"]:,.0f}', f'{row["share_of_peak"]:.0%}']
    return {**{key: row[key] for key in ('family', 'setting')}, **dict(zip(SHOWN, figures, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument('--seconds', type=float, default=390, help='of the whole table; cells that come later are left out')
    parser.add_argument('--out', type=Path, default=Path('runs/gpu'))
    given = parser.parse_args()
    if given.device == 'cuda' and not torch.cuda.is_available():
        sys.exit('there is no CUDA device here; --device cpu shows that the benchmark works')
    name = torch.cuda.get_device_name() if given.device == 'cuda' else f'{platform.processor() or "cpu"} (not a GPU)'
    end, rows = time.monotonic() + given.seconds, []
    for family, setting in [(family, setting) for setting in SETTINGS for family in RECIPES]:
        left = end - time.monotonic()
        words, ranks = cell(family, setting, given.device), RANKS.get(setting, 1)
        found = measured(words, left, ranks) if left > 5 else {'why': 'left out: out of time'}
        rows.append({'family': family, 'setting': setting, **found})
        print(
            '  '.join(f'{said:>{width}}' for said, width in zip(shown(rows[-1]).values(), (14, 19, 9, 7, 5), strict=True)),
            flush=True,
        )
    given.out.mkdir(parents=True, exist_ok=True)
    head = f'{name}, torch {torch.__version__}, {time.strftime("%Y-%m-%d")}, `make gpu`'
    (given.out / 'gpu.json').write_text(json.dumps({'head': head, 'rows': rows}, indent=1) + '\n')
    (given.out / 'gpu.md').write_text(f'{head}\n\n{as_markdown([shown(row) for row in rows])}\n')
    print(f'{given.out}/gpu.md, {given.out}/gpu.json')


if __name__ == '__main__':
    main()
