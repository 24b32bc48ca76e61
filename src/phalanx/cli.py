"""`phalanx train|eval|predict|config ...`: reads what was asked for, checks all of it, and hands it on."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import phalanx
from phalanx import dist
from phalanx.checkpoint import CheckpointError
from phalanx.config.read import ConfigError, plain
from phalanx.config.show import show
from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import Flags, add_flags
from phalanx.launch.remote import everywhere
from phalanx.loader import BadSampleError
from phalanx.page import write_page
from phalanx.runs import Job, RequestError, check_folder, check_parts, open_job, set_aside

# Options that people bring along, as assignments to the recipe.
BROUGHT_ALONG = {
    'iters': 'train.steps={}',
    'batch_size': 'train.batch_size_per_rank={}',
    'learning_rate': 'optimizer.lr={}',
    'log_iters': 'report.every={}',
    'keep_checkpoint_max': 'checkpoint.keep={}',
    'save_interval': 'checkpoint.every={}',
    'num_workers': 'train.workers={}',
    'seed': 'train.seed={}',
    'precision': 'precision.dtype={}',
    'amp': 'precision.dtype=fp16',
    'eval': 'evaluate.enabled=true',
    'use_vdl': 'report.visualdl=true',
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 done, 1 the run failed, 2 the request was wrong, 130/143 stopped after a checkpoint."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in ('-V', '--version'):
        print(f'phalanx {phalanx.__version__}')
        return 0
    if not words or words[0] in ('-h', '--help', 'help'):
        print(_help())
        return 0 if words else 2
    command = COMMANDS.get(words[0])
    if command is None:
        print(f'phalanx: {words[0]!r} is no command; {_help()}', file=sys.stderr)
        return 2
    try:
        return command(words[1:])
    except (ConfigError, RequestError) as error:
        print(error, file=sys.stderr)
        return 2


def train(words: Sequence[str]) -> int:
    """Trains a recipe, on one rank or several."""
    parser = _recipe_parser('train', 'Trains a recipe: a path, or the name of a shipped one.')
    parser.add_argument('--save_dir', type=Path, help='the run folder (default: runs/<recipe name>)')
    parser.add_argument(
        '--resume', nargs='?', const='auto', help='auto: go on with the run in the folder; or a checkpoint to start from'
    )
    parser.add_argument(
        '--fresh', action='store_true', help='start anew; an earlier run in the folder is kept under another name'
    )
    add_flags(parser)
    for option in ('iters', 'batch_size', 'learning_rate', 'log_iters', 'keep_checkpoint_max'):
        parser.add_argument(f'--{option}', metavar='N', help=BROUGHT_ALONG[option].removesuffix('={}'))
    parser.add_argument('--save_interval', metavar='STEPS', help='checkpoint.every')
    parser.add_argument('--num_workers', metavar='N', help='train.workers')
    parser.add_argument('--do_eval', '--eval', dest='eval', action='store_true', help='evaluate.enabled=true')
    parser.add_argument('--use_vdl', nargs='?', const='true', help='report.visualdl=true')
    parser.add_argument('--use_gpu', nargs='?', const='true', help='device: cuda or cpu')
    parser.add_argument('--amp', action='store_true', help='precision.dtype=fp16')
    parser.add_argument('--precision', help='precision.dtype: fp32, bf16 or fp16')
    parser.add_argument('--seed', help='train.seed')
    given, recipe, assignments = _parse(parser, words)
    for option, assignment in BROUGHT_ALONG.items():
        value = getattr(given, option)
        if value not in (None, False) and str(value).lower() != 'false':
            assignments.append((assignment.format(value), f'--{option}' if value is True else f'--{option} {value}'))
    if given.use_gpu is not None:
        wish = 'cuda' if given.use_gpu.lower() in ('true', '1', 'yes') else 'cpu'
        assignments.append((f'device={wish}', f'--use_gpu {given.use_gpu}'))
    job = open_job(recipe, assignments, given.save_dir)

    if dist.is_launched():
        return _as_rank(job, given.resume, given.fresh)
    flags, cluster = _cluster(job, given)
    if flags.ssh:
        return everywhere(flags, 'train', words, train, job.folder)
    check_parts(job, cluster.ranks_per_node * cluster.max_nodes if cluster else 1)
    if cluster is None or cluster.meeting is None or cluster.hosts_meeting:  # the run folder is that of rank 0
        check_folder(job, given.resume, given.fresh)
        if given.fresh and (aside := set_aside(job.folder)):
            print(f'the earlier run is kept in {aside}')
    if cluster is None:
        return _as_rank(job, given.resume, fresh=False)
    return _launch('train', [word for word in words if word != '--fresh'], job, cluster, flags)


def _as_rank(job: Job, resume: str | None, fresh: bool) -> int:
    """Trains as one rank; started alone, what ended the run is printed here, else it goes to the launcher."""
    from torch.distributed.elastic.multiprocessing.errors import record

    from phalanx import worker
    from phalanx.trainer import RunError

    if dist.is_launched():
        return record(worker.train)(job, worker.Start(resume, fresh)) or 0
    try:
        return worker.train(job, worker.Start(resume, fresh))
    except (RunError, BadSampleError, CheckpointError, OSError) as error:
        print(f'the run failed: {error}', file=sys.stderr)
        return 1


def evaluate(words: Sequence[str]) -> int:
    """Judges the weights of a run, or others, on the evaluation samples."""
    parser = _recipe_parser('eval', 'Evaluates a run folder, or a recipe with --weights.')
    parser.add_argument(
        '--weights', type=Path, help='a checkpoint, run folder, .safetensors or .pdparams file (default: the best of the run)'
    )
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    add_flags(parser)
    given, recipe, assignments = _parse(parser, words)
    job = open_job(recipe, assignments)

    from phalanx import worker
    from phalanx.report import print_evaluation

    if not dist.is_launched():
        flags, cluster = _cluster(job, given)
        if flags.ssh:
            return everywhere(flags, 'eval', words, evaluate, job.folder)
        if cluster is not None:
            return _launch('eval', words, job, cluster, flags)
    try:
        result = worker.evaluate(job, given.weights)
    except (CheckpointError, BadSampleError, RuntimeError) as error:
        print(f'evaluation failed: {error}', file=sys.stderr)
        return 1
    if dist.rank_of_environment() != 0:
        return 0
    if given.json:
        print(json.dumps({**result.metrics, 'samples': result.samples, 'seconds': result.seconds, 'table': result.table}))
    else:
        print_evaluation(result.metrics, result.table, result.samples, result.seconds)
    return 0


def predict(words: Sequence[str]) -> int:
    """Writes the results of a trained model for images."""
    parser = _parser('predict', 'Predicts images with a trained run and writes the results.')
    parser.add_argument('run', help='a run folder, or a recipe with --weights')
    parser.add_argument('images', nargs='+', type=Path, help='image files, or folders of them')
    parser.add_argument('--out', type=Path, required=True, help='the folder to write to')
    parser.add_argument('--weights', type=Path, help='a checkpoint, run folder, .safetensors or .pdparams file')
    given = parser.parse_args(_dashes(words))

    from phalanx.predict import predict_images

    try:
        written, failed = predict_images(given.run, given.images, given.out, given.weights)
    except CheckpointError as error:
        print(f'prediction failed: {error}', file=sys.stderr)
        return 1
    print(f'{written} images predicted, results in {given.out}' + (f'; {failed} could not be read' if failed else ''))
    return 1 if failed else 0


def config(words: Sequence[str]) -> int:
    """Prints the resolved recipe, each value with its origin."""
    parser = _recipe_parser('config', 'Prints the resolved recipe, each value followed by where it was written.')
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
    given, recipe, assignments = _parse(parser, words)
    job = open_job(recipe, assignments)
    for note in job.notes:
        print(f'note: {note}', file=sys.stderr)
    print(json.dumps(plain(job.resolved)) if given.json else show(job.resolved), end='\n' if given.json else '')
    return 0


def data(words: Sequence[str]) -> int:
    """Checks a data set, or makes one of what people have."""
    from phalanx.data.command import command

    return command(words)


def report(words: Sequence[str]) -> int:
    """Builds the page of a run folder anew, also while the run goes on."""
    parser = _parser('report', 'Builds report.html of a run folder from what the run has written so far.')
    parser.add_argument('run', type=Path, help='a run folder')
    given = parser.parse_args(words)
    if not any((given.run / name).is_file() for name in ('journal.jsonl', 'metrics.jsonl')):
        raise RequestError(f'{given.run}: is no folder of a run (it has neither journal.jsonl nor metrics.jsonl)')
    try:
        print(write_page(given.run))
    except OSError as error:
        print(f'the page could not be written: {error}', file=sys.stderr)
        return 1
    return 0


def export(words: Sequence[str]) -> int:
    """Writes a trained network as an ONNX file, checked."""
    from phalanx.export import command

    return command(words)


def convert(words: Sequence[str]) -> int:
    """Writes a configuration or weights of a Paddle project as files of ours."""
    from phalanx.conversion import command

    return command(words)


def launch(words: Sequence[str]) -> int:
    """Runs any script as the ranks of a run, on one machine or many."""
    from phalanx.launch.command import command

    return command(words)


def doctor(words: Sequence[str]) -> int:
    """Checks this machine, or whether several fit together, without starting anything."""
    from phalanx.launch.doctor import command

    return command(words)


def bench(words: Sequence[str]) -> int:
    """Measures training, its input pipeline, the network, or the scaling."""
    from phalanx.bench.command import command

    return command(words)


def plan(words: Sequence[str]) -> int:
    """Predicts what more nodes would bring."""
    from phalanx.bench.plan_command import command

    return command(words)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    'train': train,
    'eval': evaluate,
    'predict': predict,
    'config': config,
    'data': data,
    'report': report,
    'export': export,
    'convert': convert,
    'launch': launch,
    'doctor': doctor,
    'bench': bench,
    'plan': plan,
}


def _help() -> str:
    lines = [f'  {name:<8} {(command.__doc__ or "").splitlines()[0]}' for name, command in COMMANDS.items()]
    return 'usage: phalanx COMMAND ... (phalanx COMMAND --help says more)\n' + '\n'.join(lines)


def _cluster(job: Job, given: argparse.Namespace) -> tuple[Flags, Cluster | None]:
    """The processes that the flags ask for; None when this one is enough. Raises RequestError."""
    try:
        flags = Flags.of(given)
        if flags.ssh:
            return flags, None
        available = torch.cuda.device_count() if job.recipe.device != 'cpu' else 0
        cluster, warnings = Cluster.from_flags(flags, available)
    except ValueError as error:
        raise RequestError(str(error)) from None
    for warning in warnings:
        print(f'warning: {warning}', file=sys.stderr)
    return flags, cluster


def _launch(command: str, words: Sequence[str], job: Job, cluster: Cluster, flags: Flags) -> int:
    from phalanx.launch.launcher import launch
    from phalanx.launch.preflight import disk_free, fingerprint

    def facts() -> dict[str, Any]:
        return {
            'command': command,
            'recipe': fingerprint(iter([json.dumps(plain(job.resolved), sort_keys=True)])),
            'data': job.fingerprint(),
            'max_restart': flags.max_restart or 0,
            'disk': disk_free(job.folder),
        }

    return launch(
        [sys.executable, '-m', 'phalanx', command, *words], cluster, flags, flags.log_dir or job.folder / 'log', facts
    )


def _parser(command: str, text: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f'phalanx {command}', description=text, allow_abbrev=False)


def _recipe_parser(command: str, text: str) -> argparse.ArgumentParser:
    parser = _parser(command, text)
    parser.add_argument('words', nargs='*', metavar='RECIPE [KEY VALUE ...]', help='the recipe, then assignments in pairs')
    parser.add_argument('-c', '--config', '--cfg', dest='recipe', help='the recipe')
    parser.add_argument(
        '--set', dest='assign', nargs='+', action='extend', default=[], metavar='KEY=VALUE', help='overrides a key'
    )
    parser.add_argument('-o', '--opts', dest='assign', nargs='+', action='extend', metavar='KEY=VALUE', help='the same')
    return parser


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, str, list[tuple[str, str]]]:
    """The options, the recipe, and the assignments (text, origin) in the order in which they were written."""
    given = parser.parse_intermixed_args(_dashes(words))
    bare = [
        *given.words,
        *(word for word in given.assign if '=' not in word),
    ]  # `--set a=1 recipe.yml`: the recipe is no assignment
    if given.recipe is None and not bare:
        parser.error('which recipe? give a path or the name of a shipped one')
    recipe = given.recipe if given.recipe is not None else bare.pop(0)
    pairs = []
    while bare:
        word = bare.pop(0)
        if '=' in word:
            pairs.append((word, word))
        elif bare:
            value = bare.pop(0)
            pairs.append((f'{word}={value}', f'{word} {value}'))
        else:
            parser.error(f'{word!r}: expected KEY VALUE pairs after the recipe, this key has no value')
    return given, recipe, [*((word, f'--set {word}') for word in given.assign if '=' in word), *pairs]


def _dashes(words: Sequence[str]) -> list[str]:
    """Option names with dashes or underscores alike."""
    named = [word.partition('=') for word in words]
    return [
        f'--{name[2:].replace("-", "_")}{equals}{value}' if name.startswith('--') and len(name) > 2 else name + equals + value
        for name, equals, value in named
    ]


if __name__ == '__main__':
    sys.exit(main())
