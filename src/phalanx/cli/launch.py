"""`phalanx launch`, `python -m phalanx.launch` and `fleetrun`: runs any script or module as the ranks of a run."""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from phalanx.cli.ranks import find_network, patience_with_names
from phalanx.cli.train_options import train_parser
from phalanx.config.arguments import parse_recipe_words
from phalanx.config.read import ConfigError
from phalanx.engine.job import find_recipe, run_folder
from phalanx.launch import jobs, preflight
from phalanx.launch.cluster import Cluster
from phalanx.launch.environment import detect
from phalanx.launch.flags import Flags
from phalanx.launch.launcher import launch
from phalanx.launch.members import NodeInfo
from phalanx.launch.on_ray import launch_on_ray
from phalanx.launch.options import JOB_FILES, launch_parser
from phalanx.launch.remote import run_on_all_nodes
from phalanx.launch.rendezvous import print_line
from phalanx.launch.start import apply_start


def command(words: Sequence[str]) -> int:
    """Exit status of the launch, see `launcher.launch`; 2 for a wrong request."""
    given = launch_parser().parse_args(list(words))
    try:
        # another launcher or a scheduler may have started this process
        start = detect(os.environ, os.getppid())
        flags = Flags.of(given, start=start)
        # requests that start nothing on this node
        if any(vars(given)[f'write_{name}'] for name in JOB_FILES):
            return write_jobs(given, flags)
        if given.ray is not None:
            if start.per and start.count > 1:
                raise ValueError(f'--ray starts all ranks: give the command once, but it was {start}')
            return launch_on_ray(given.ray, words_on_ray(given, flags), flags)
        if flags.ssh:
            begin = len(words) - len(given.arguments) - 1  # position of the script and its own words
            return run_on_all_nodes(flags, 'launch', words[:begin], flags.log_dir or Path('log'), words[begin:])
        # the command of a rank; scripts of Paddle projects are replaced by `phalanx train`
        started = [given.script, *given.arguments]
        if given.module:
            started = [sys.executable, '-m', *started]
        elif imports_paddle(Path(given.script)):
            ours = command_for(given.script) or 'train'
            command = shlex.join([*(['-m'] if ours in ('train', 'eval') else []), 'phalanx', ours, *given.arguments])
            cure = 'it imports paddle. Run Phalanx in its place, with the same options'
            raise ValueError(f"{given.script} is PaddlePaddle's own script: {cure}: {command}")
        elif Path(given.script).name == 'train.py' and not Path(given.script).is_file():
            print_line(f'{given.script} does not exist; running `phalanx train` in its place')
            started = [sys.executable, '-m', 'phalanx', 'train', *given.arguments]
        elif not Path(given.script).is_file():
            named = command_for(given.script)
            cure = f'; `phalanx {named}` takes the same words' if named else ''
            raise ValueError(f'{given.script}: there is no such script{cure}')
        elif given.script.endswith('.py'):
            started = [sys.executable, '-u', *started]
        # the ranks of this node: those of the launcher, of the flags, or one per device
        apply_start(flags.placed(start))
        if start.per == 'rank':  # a foreign launcher has started this rank already: become the script
            find_network(start, flags.join_timeout)
            os.execvp(started[0], started)
        if not flags.asks_for_ranks:
            flags = replace(flags, nproc_per_node=max(1, torch.cuda.device_count()))
        cluster, warnings = Cluster.from_flags(flags, torch.cuda.device_count(), patience=patience_with_names(flags, start))
        for warning in warnings:
            print_line(f'warning: {warning}')
    except ValueError as error:
        print(f'phalanx launch: {error}', file=sys.stderr)
        return 2
    assert cluster is not None
    return launch(started, cluster, flags, flags.log_dir or Path('log'), lambda: script_facts(flags, started), follow=True)


def words_on_ray(given: argparse.Namespace, flags: Flags) -> list[str]:
    """Words of a rank on a Ray cluster, after `python`. `phalanx launch --ray A train RECIPE` means `phalanx train RECIPE`."""
    if given.script not in ('train', 'eval'):
        return ['-m', 'phalanx', 'launch', *(['-m'] if given.module else []), given.script, *given.arguments]
    logs = [*(['--log_dir', str(flags.log_dir)] if flags.log_dir else []), *(['--log_append'] if flags.log_append else [])]
    return ['-m', 'phalanx', given.script, *given.arguments, *logs]


def command_for(script: str) -> str | None:
    """Command that does what a script of a Paddle project does, by its name; None for any other script."""
    commands = {'train': 'train', 'eval': 'eval', 'val': 'eval', 'infer': 'predict', 'predict': 'predict', 'export': 'export'}
    return commands.get(Path(script).stem.partition('_')[0])


def imports_paddle(script: Path) -> bool:
    """True if a script imports paddle, as in a clone of PaddleSeg, PaddleDetection or PaddleOCR."""
    if script.suffix != '.py' or not script.is_file():
        return False
    lines = script.read_text(encoding='utf-8', errors='replace').splitlines()
    return any(re.match(r'\s*(import|from) (paddle|paddleseg|ppdet|ppocr)\b', line) for line in lines)


def write_jobs(given: argparse.Namespace, flags: Flags) -> int:
    """Write the requested job files. `phalanx launch train RECIPE` becomes `phalanx train RECIPE` in them."""
    nodes, devices, shared = jobs.flags_of_job(given, flags)
    if given.script == 'train':
        started = ['phalanx', 'train', *_with_run_folder([*given.arguments, *shared])]
    else:
        started = ['phalanx', 'launch', *shared, *(['-m'] if given.module else []), given.script, *given.arguments]
    for name, write in jobs.WRITERS.items():
        if file := vars(given)[f'write_{name}']:
            if name != 'slurm' and '--fresh' in started:  # a job of SLURM is known by its number
                raise ValueError(
                    '--fresh would set the run aside at each restart of the job: leave it out; --save_dir starts another'
                )
            write(file, started, nodes, devices)
            print(f'written: {file}; read its comments before you submit it')
    return 0


def _with_run_folder(words: Sequence[str]) -> list[str]:
    """Words of a training with its run folder, which job files read and move."""
    given, recipe, _ = parse_recipe_words(train_parser(), words)
    try:
        file = find_recipe(recipe)
    except ConfigError:  # it may exist on the cluster only
        file = Path(recipe)
    return [*words, *([] if given.save_dir else ['--save_dir', str(run_folder(file))])]


def script_facts(flags: Flags, started: Sequence[str]) -> NodeInfo:
    """Facts that must agree on all nodes for an arbitrary script: its command and the files among its words."""
    files = [word for word in started[1:] if Path(word).is_file()]
    return {
        'command': ' '.join(started[1:]),
        'recipe': preflight.hash_parts(part for file in files for part in (file, Path(file).read_bytes())),
        'disk': preflight.free_disk(flags.log_dir or Path('log')),
    }
