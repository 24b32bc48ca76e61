"""How long a start takes: from the command to the first step, `phalanx launch` beside torchrun on the same script.

`python benchmarks/startup.py [RUNS]`: both in turn, RUNS times each (5), two ranks on the CPU; medians and their ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group('gloo')
model = DistributedDataParallel(torch.nn.Linear(64, 64))
model(torch.ones(8, 64)).sum().backward()
dist.barrier()
if dist.get_rank() == 0:
    open(sys.argv[1], 'w').write(str(time.time()))
dist.destroy_process_group()
"""
LAUNCHERS = {
    'torchrun': ['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2'],
    'phalanx launch': ['-m', 'phalanx.launch', '--nproc_per_node', '2'],
}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seconds: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    with tempfile.TemporaryDirectory() as folder:
        script, mark = Path(folder) / 'train.py', Path(folder) / 'first_step'
        script.write_text(SCRIPT)
        for _ in range(runs + 1):  # the first of each fills the file cache and does not count
            for name, words in LAUNCHERS.items():
                begun = time.time()
                command = [sys.executable, *words, str(script), str(mark)]
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
                seconds[name].append(float(mark.read_text()) - begun)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f'{name:<16} {median:6.2f} s to the first step (median of {runs})')
    print(f'ratio            {medians["phalanx launch"] / medians["torchrun"]:6.2f}')


if __name__ == '__main__':
    main()
