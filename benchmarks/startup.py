"""The time of a start: of `phalanx launch` beside torchrun to the first step of a script, and of commands to their answer.

`python benchmarks/startup.py [RUNS]`: all in turn, RUNS times each (5), the launches with two ranks on the CPU; medians, of the
launches in seconds with their ratio, of the commands in seconds of processor time beside that of `import torch`.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
COMMANDS = ('--help', 'train --help', 'config', 'weights list', 'config crnn_digits')


def first_step(words: Sequence[str]) -> float:
    """Seconds from the start of a launcher to the first step of its script."""
    with tempfile.TemporaryDirectory() as folder:
        script, mark = Path(folder) / 'train.py', Path(folder) / 'first_step'
        script.write_text(SCRIPT)
        begun = time.time()
        subprocess.run([sys.executable, *words, str(script), str(mark)], cwd=folder, check=True, capture_output=True)
        return float(mark.read_text()) - begun


def processor_time(words: Sequence[str]) -> float:
    """Seconds of all threads of a Python process, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    first = in_turns(runs, first_step, LAUNCHERS)
    for name, median in first.items():
        print(f'{name:<16} {median:6.2f} s to the first step (median of {runs})')
    print(f'ratio            {first["phalanx launch"] / first["torchrun"]:6.2f}')
    lines = {'import torch': ['-c', 'import torch']} | {f'phalanx {one}': ['-m', 'phalanx', *one.split()] for one in COMMANDS}
    for name, median in in_turns(runs, processor_time, lines).items():
        print(f'{name:<55} {median:6.2f} s of processor time')


def in_turns(runs: int, measure: Callable[[Sequence[str]], float], commands: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The median of what is measured of each; the first time fills the file cache and does not count."""
    measured = [[measure(words) for words in commands.values()] for _ in range(runs + 1)]
    return dict(zip(commands, map(statistics.median, zip(*measured[1:], strict=True)), strict=True))


if __name__ == '__main__':
    main()
