"""Options of `phalanx launch` and `phalanx doctor`. Nothing here loads torch, so `--help` does not wait for it."""

import argparse

from phalanx.config.arguments import Help, Parser, add_json
from phalanx.launch.flags import add_flags
from phalanx.system.paths import parse_path

JOB_FILES = {  # the functions that write them are in `jobs`
    'slurm': 'a batch script, and start nothing, as with the other job files',
    'kubernetes': 'a TrainJob of Kubeflow Trainer v2',
    'pytorchjob': 'a PyTorchJob (its predecessor)',
    'skypilot': 'a task of SkyPilot',
}


def launch_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='phalanx launch',
        description='Runs a script (or a module, with -m) as the ranks of a run, on the devices of one node or many.',
        formatter_class=Help,
        allow_abbrev=False,
    )
    add_flags(parser)
    for name, about in JOB_FILES.items():
        parser.add_argument(f'--write_{name}', f'--write-{name}', type=parse_path, metavar='FILE', help=f'write {about}')
    parser.add_argument(
        '--ray', metavar='ADDRESS', help='run the ranks on an existing Ray cluster: HOST:PORT, auto, ray://HOST:PORT'
    )
    parser.add_argument('-m', '--module', action='store_true', help='SCRIPT is the name of a module')
    parser.add_argument('script', metavar='SCRIPT', help='a Python script, or another executable')
    parser.add_argument('arguments', metavar='...', nargs=argparse.REMAINDER, help='arguments of the script')
    return parser


def doctor_parser() -> Parser:
    about = 'Checks this node, and with --ips (the same command on each) whether the nodes are compatible.'
    parser = Parser('phalanx doctor', about)
    add_flags(parser)
    add_json(parser)
    return parser
