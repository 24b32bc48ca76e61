"""`phalanx train|eval|predict|config|report`: reads what was asked for, checks all of it, and hands it on."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from phalanx.cli.finetune import finetuned, lines
from phalanx.config.arguments import (
    Assignments,
    Parser,
    add_assignments,
    add_brought_recipe,
    add_json,
    add_offline,
    assignments,
    parse_brought,
    with_values,
)
from phalanx.config.explain import explain_any
from phalanx.config.originals import dialect_of
from phalanx.config.originals.dialect import Dialect
from phalanx.config.read import plain
from phalanx.config.shipped import listing
from phalanx.config.show import show
from phalanx.engine.loader import BadSampleError
from phalanx.engine.runs import (
    Job,
    check_folder,
    check_initial,
    check_parts,
    families_of,
    find_recipe,
    open_job,
    pick_device,
    said_of_weights,
    set_aside,
)
from phalanx.engine.schema import Recipe
from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import Flags, add_flags
from phalanx.launch.remote import everywhere
from phalanx.parallel import dist
from phalanx.report.page import write_page
from phalanx.report.readable import counted
from phalanx.system.errors import RequestError
from phalanx.weights.checkpoint import CheckpointError, Checkpoints
from phalanx.weights.published import class_names

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
    'amp': 'precision.dtype=fp16',
    'precision': 'precision.dtype={}',  # after `amp`, so that it says what kind of mixed precision
    'eval': 'evaluate.enabled=true',
    'use_vdl': 'report.visualdl=true',
    'slim_config': 'slim_config={}',
}
TAKEN_ALONG = {  # options of the originals that say nothing here
    'use_mpio': 'loader workers are processes in any case',
    'debug': 'every rank writes its own log',
    'fleet': 'the launcher says on how many devices to train',
    'vdl_log_dir': 'VisualDL records lie in the run folder',
    'amp_level': "torch's autocast is what level O1 is",
}
WEIGHTS = 'a checkpoint, run folder, file, https:// or hf:// address, or a name that `phalanx weights` lists'

TRAIN_EXAMPLES = (
    'phalanx train pp_liteseg_digits                                 # on data that comes with the package; some minutes',
    'phalanx train mine.yml --set data.root=DIR optimizer.lr=0.01    # any key of the recipe; goes on where it was stopped',
    'phalanx train mine.yml --finetune                               # some minutes from published weights of its network',
    'phalanx train mine.yml --gpus 0,1,2,3                           # on four devices',
    'phalanx train mine.yml --gpus 0,1 --ips 10.0.0.1,10.0.0.2       # of two nodes: the same command on both',
)
EVAL_EXAMPLES = (
    'phalanx eval runs/mine',
    'phalanx eval runs/mine --set data.eval=test.txt --json',
    'phalanx eval runs/mine --page eval.html                         # with pictures of the worst samples',
    'phalanx eval mine.yml --weights model.pdparams',
    'phalanx eval runs/mine/model.onnx                               # the exported file, beside the weights of its run',
)
PREDICT_EXAMPLES = (
    'phalanx predict runs/mine photos --out results',
    'phalanx predict runs/mine photos clip.mp4 --out results --threshold 0.5 --set device=cpu',
    'phalanx predict runs/mine photos --out results --save txt,crops # labels as YOLO has them, and the objects cut out',
    'find photos -newer seen | phalanx predict runs/mine - --out results',
    'phalanx predict runs/mine 0 --out results                        # camera 0, until Ctrl-C',
    'phalanx predict mine.yml a.jpg b.jpg --weights w.pdparams --out results',
    'phalanx predict ppyoloe_plus_crn_s_80e_coco photos --weights ppyoloe_plus_crn_s_80e_coco --out results',
)
CONFIG_EXAMPLES = (
    'phalanx config                                # the shipped recipes',
    'phalanx config pp_liteseg_digits              # one of them, with all defaults',
    'phalanx config mine.yml --set train.steps=10  # yours: is it right?',
    'phalanx config mine.yml --explain             # every key it could have: what it takes, its default and its meaning',
    'phalanx config mine.yml --explain transforms  # one of them, with all that can be chosen there',
    'phalanx config --explain train.init_from      # without a recipe: of every family that has it',
)


def wanted(words: Sequence[str]) -> tuple[argparse.Namespace, Job]:
    """What a command line of `phalanx train` asks for: its options, and the run. Raises ConfigError."""
    parser = Parser('phalanx train', 'Trains a recipe, on one rank or several.', TRAIN_EXAMPLES)
    add_brought_recipe(parser)
    parser.add_argument('--save_dir', type=Path, metavar='DIR', help='the run folder (default: runs/<recipe name>)')
    parser.add_argument(
        *('--resume', '-r', '--resume_model'),
        dest='resume',
        nargs='?',
        const='auto',
        metavar='FROM',
        help='auto: go on with the run in the folder; or a checkpoint',
    )
    parser.add_argument(
        '--fresh', action='store_true', help='start over; an earlier run in the folder is kept under another name'
    )
    parser.add_argument(
        '--finetune', action='store_true', help='some minutes from published weights of the network; says what it chooses'
    )
    add_offline(parser)
    add_flags(parser)
    brought = parser.add_argument_group('other names for keys of the recipe, as people know them')
    for option in ('iters', 'batch_size', 'learning_rate', 'log_iters', 'keep_checkpoint_max', 'save_interval', 'num_workers'):
        names = ('--log_iters', '--log_steps') if option == 'log_iters' else (f'--{option}',)
        brought.add_argument(*names, dest=option, metavar='N', help=BROUGHT_ALONG[option].removesuffix('={}'))
    brought.add_argument('--seed', metavar='N', help='train.seed')
    brought.add_argument('--precision', metavar='DTYPE', help='precision.dtype: fp32, bf16 or fp16')
    brought.add_argument('--amp', action='store_true', help='precision.dtype=fp16')
    brought.add_argument('--do_eval', '--eval', dest='eval', action='store_true', help='evaluate.enabled=true')
    brought.add_argument('--use_vdl', nargs='?', const='true', metavar='BOOL', help='report.visualdl=true')
    brought.add_argument('--slim_config', metavar='FILE', help='PaddleDetection: the teacher, and what is learned from it')
    brought.add_argument('--use_gpu', nargs='?', const='true', metavar='BOOL', help='device=cuda, or cpu')
    brought.add_argument('--device', choices=('gpu', 'cuda', 'cpu'), help='device=cuda, or cpu')
    for option, reason in TAKEN_ALONG.items():
        action = 'store' if option in ('vdl_log_dir', 'amp_level') else 'store_true'
        brought.add_argument(f'--{option}', action=action, help=f'nothing: {reason}')
    given, recipe, assigned = parse_brought(parser, with_values(words, ('--use_gpu', '--use_vdl')))
    assigned = _brought(given, dialect_of(find_recipe(recipe)), assigned)
    if not given.finetune:
        return given, open_job(recipe, assigned, given.save_dir)
    job, chosen = finetuned(recipe, assigned, given.save_dir)
    if not dist.is_launched():
        print('\n'.join(lines(chosen)))
    return given, job


def train(words: Sequence[str]) -> int:
    """Trains a recipe, on one rank or several."""
    given, job = wanted(words)
    for option, reason in TAKEN_ALONG.items():
        if getattr(given, option) and not dist.is_launched():
            print(f'--{option} is ignored: {reason}')

    if dist.is_launched():
        return _as_rank(job, given.resume, given.fresh)
    flags, cluster = _cluster(job, given)
    if flags.ssh:
        return everywhere(flags, 'train', words, job.folder)
    check_parts(job, cluster.ranks_per_node * cluster.max_nodes if cluster else 1)
    pick_device(job.recipe.device, cluster.ranks_per_node - 1 if cluster else 0)  # that of the last rank here
    if cluster is None or cluster.rendezvous is None or cluster.hosts_rendezvous:  # the run folder is that of rank 0
        check_folder(job, given.resume, given.fresh)
        if given.fresh and (aside := set_aside(job.folder)):
            print(f'the earlier run is kept in {aside}')
    if given.fresh or not Checkpoints(job.folder, keep=1).all():
        check_initial(job)
    if cluster is None:
        return _as_rank(job, given.resume, fresh=False)
    return _launch('train', [word for word in words if word != '--fresh'], job, cluster, flags)


def _brought(given: argparse.Namespace, dialect: Dialect | None, assigned: Assignments) -> Assignments:
    """`assigned`, and what options of the originals say as assignments too, as the project of the configuration means them."""
    if dialect is not None and dialect.evaluates_on_request and not given.eval:
        assigned = [('evaluate.enabled=false', f'without --do_eval or --eval, as in {dialect.project}'), *assigned]
    meanings = {option: (assignment,) for option, assignment in BROUGHT_ALONG.items()} | (
        dict(dialect.options) if dialect else {}
    )
    for option in BROUGHT_ALONG:
        value = getattr(given, option)
        if value in (None, False) or str(value).lower() == 'false':
            continue
        origin = f'--{option}' if value is True else f'--{option} {value}'
        assigned = [*assigned, *((assignment.format(value), origin) for assignment in meanings[option])]
    if given.use_gpu is not None:
        wish = 'cuda' if given.use_gpu.lower() in ('true', '1', 'yes') else 'cpu'
        assigned = [*assigned, (f'device={wish}', f'--use_gpu {given.use_gpu}')]
    if given.device is not None:
        assigned = [*assigned, (f'device={given.device.replace("gpu", "cuda")}', f'--device {given.device}')]
    return assigned


def _as_rank(job: Job, resume: str | None, fresh: bool) -> int:
    """Trains as one rank; what ended the run is one line here, and the launcher's last one."""
    from torch.distributed.elastic.multiprocessing.errors import record

    from phalanx.engine import worker
    from phalanx.launch.preflight import look_here
    from phalanx.system.errors import RunError

    if not dist.is_launched():
        look_here(job.folder)
    try:
        train = record(worker.train) if dist.is_launched() else worker.train  # recorded for the launcher
        return train(job, worker.Start(resume, fresh)) or 0
    except (RunError, BadSampleError, CheckpointError, OSError) as error:
        print(f'the run failed: {_told(error)}', file=sys.stderr)
        return 1


def evaluate(words: Sequence[str]) -> int:
    """Evaluates the weights of a run, or others."""
    about = 'Evaluates the weights of a run folder, or those of --weights with a recipe.'
    parser = Parser('phalanx eval', about, EVAL_EXAMPLES)
    add_brought_recipe(parser)
    parser.add_argument('--weights', metavar='WEIGHTS', help=f'{WEIGHTS} (default: the best of the run)')
    add_offline(parser)
    parser.add_argument(
        '--data', metavar='RUN', help='for MODEL.onnx: the run or recipe of its data (default: the folder it is in)'
    )
    parser.add_argument('--raw', action='store_true', help='the weights of the run as trained, not their EMA')
    page = 'write a page: the table, curves, what is taken for what, the worst samples'
    parser.add_argument('--page', type=Path, metavar='FILE', help=page)
    add_json(parser)
    add_flags(parser)
    given, recipe, assigned = parse_brought(parser, words)
    if Path(recipe).suffix in ('.onnx', '.xml'):
        return _evaluate_exported(Path(recipe), given, assigned)
    if given.raw and given.weights is not None and not Path(given.weights).is_dir():
        raise RequestError(f'--raw: {given.weights} is no checkpoint, which has its EMA beside it; leave --raw out')
    job = open_job(recipe, assigned)

    from phalanx.engine import worker
    from phalanx.report.report import PAGE_PICTURES, print_evaluation, write_evaluation

    if not dist.is_launched():
        flags, cluster = _cluster(job, given)
        if flags.ssh:
            return everywhere(flags, 'eval', words, job.folder)
        if cluster is not None:
            return _launch('eval', words, job, cluster, flags)
    try:
        raw = given.raw or job.recipe.ema is None  # `--set ema=null` asks for them, too
        said = said_of_weights(job, given.weights, raw=raw)
        if dist.rank_of_environment() == 0:
            print(f'weights: {said}', file=sys.stderr)
        result = worker.evaluate(job, given.weights, raw=raw, pictures=PAGE_PICTURES if given.page else 0)
        if given.page and dist.rank_of_environment() == 0:
            write_evaluation(given.page, job.name, said, result)
    except (CheckpointError, BadSampleError, OSError, RuntimeError, ValueError) as error:
        print(f'evaluation failed: {_told(error)}', file=sys.stderr)
        return 1
    if dist.rank_of_environment() != 0:
        return 0
    if given.json:
        metrics = {name: None if math.isnan(value) else value for name, value in result.metrics.items()}
        worst = [{'sample': one.name, 'grade': one.grade.value, 'said': one.grade.said} for one in result.worst]
        facts = {'samples': result.samples, 'seconds': result.seconds, 'table': result.table, 'worst': worst}
        print(json.dumps({**metrics, **facts}))
    else:
        print_evaluation(result)
    return 0


def _evaluate_exported(file: Path, given: argparse.Namespace, assigned: Assignments) -> int:
    from phalanx.deploy import deployed
    from phalanx.runtime import ArtifactError

    try:
        deployed.command(file, given.data, given.weights, assigned, as_json=given.json, page=given.page)
    except (ArtifactError, BadSampleError, OSError, ValueError) as error:
        print(f'evaluation failed: {_told(error)}', file=sys.stderr)
        return 1
    return 0


def predict(words: Sequence[str]) -> int:
    """Writes the results of a trained model for images."""
    parser = Parser('phalanx predict', 'Writes the results of a trained model for images and videos.', PREDICT_EXAMPLES)
    parser.add_argument('run', metavar='RUN', help='a run folder, or a recipe with --weights')
    what = 'files, folders, patterns in quotes; `-` reads paths from standard input, a number is a camera'
    parser.add_argument('images', metavar='IMAGE', nargs='+', type=Path, help=what)
    parser.add_argument('--out', type=Path, metavar='DIR', required=True, help='the folder to write to')
    parser.add_argument('--weights', metavar='WEIGHTS', help=WEIGHTS)
    ways = 'which files, of json, txt, crops, pictures, masks and html those that the family has (default: the usual ones)'
    parser.add_argument('--save', metavar='A,B,..', help=ways)
    shown = 'draw, cut out and list as txt objects of this score or more (shown_from)'
    parser.add_argument('--threshold', type=float, metavar='SCORE', help=shown)
    add_offline(parser)
    add_assignments(parser)
    given = parser.parse_args(words)
    job = open_job(given.run, assignments(given))
    if given.threshold is not None:
        if 'shown_from' not in job.resolved.value:
            raise RequestError(f'--threshold: a {plain(job.resolved.value["task"])} has no objects with scores; leave it out')
        if not 0 <= given.threshold <= 1:
            raise RequestError(f'--threshold: a score is between 0 and 1, got {given.threshold:g}')
        given.set.append(f'shown_from={given.threshold}')
        job = open_job(given.run, assignments(given))
    data = job.resolved.value['data'].value
    if (names := class_names(given.weights or '')) and 'classes' in data and data['classes'].value is None:
        classes = json.dumps(names)  # published weights can predict where the data set that they were trained on is not
        job = open_job(given.run, [*assignments(given), (f'data.classes={classes}', f'--weights {given.weights}')])

    from phalanx.deploy.predict import predict_files

    try:
        done = predict_files(job, given.images, given.out, given.weights, given.save.split(',') if given.save else ())
    except (CheckpointError, OSError, ValueError) as error:  # no weights; a folder that cannot be written to; no classes
        print(f'prediction failed: {_told(error)}', file=sys.stderr)
        return 1
    counts = [counted(done.images, 'image')] if done.images or not done.frames else []
    counts += [counted(done.frames, 'frame')] if done.frames else []
    unread = f'; {done.failed} could not be read' if done.failed else ''
    print(f'{" and ".join(counts)} predicted, results in {given.out}{unread}')
    return 1 if done.failed else 0


def config(words: Sequence[str]) -> int:
    """Prints the resolved recipe, each value with its origin; without a recipe, the list of the shipped ones."""
    about = 'Prints the resolved recipe, each value followed by where it was written; without a recipe, lists the shipped ones.'
    parser = Parser('phalanx config', about, CONFIG_EXAMPLES)
    add_brought_recipe(parser)
    add_json(parser)
    parser.add_argument('--explain', metavar='KEY', nargs='?', const='', help='show what may stand at a key, or at every one')
    if not words:
        print(listing())
        return 0
    asked = parser.parse_intermixed_args(words)
    if asked.explain is not None:  # which no recipe, or a wrong one, does not stand in the way of
        named = asked.recipe or next(iter(asked.words), None)
        schemas = {name: family.Keys for name, family in families_of(named).items()}
        print(explain_any(Recipe, schemas, asked.explain), end='')
        return 0
    given, recipe, assigned = parse_brought(parser, words)
    job = open_job(recipe, assigned)
    for note in job.notes:
        print(f'note: {note}', file=sys.stderr)
    print(json.dumps(plain(job.resolved)) if given.json else show(job.resolved), end='\n' if given.json else '')
    return 0


def report(words: Sequence[str]) -> int:
    """Rebuilds the page of a run folder, also during the run."""
    about = 'Builds report.html of a run folder from what the run has written so far.'
    parser = Parser('phalanx report', about, ['phalanx report runs/pp_liteseg_digits'])
    parser.add_argument('run', metavar='RUN', type=Path, help='a run folder')
    given = parser.parse_args(words)
    if not any((given.run / name).is_file() for name in ('journal.jsonl', 'metrics.jsonl')):
        raise RequestError(f'{given.run}: is not a run folder (it has neither journal.jsonl nor metrics.jsonl)')
    try:
        print(write_page(given.run))
    except OSError as error:
        print(f'the page could not be written: {_told(error)}', file=sys.stderr)
        return 1
    return 0


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
            'disk': disk_free(job.folder),
        }

    return launch(
        [sys.executable, '-m', 'phalanx', command, *words], cluster, flags, flags.log_dir or job.folder / 'log', facts
    )


def _told(error: Exception) -> str:
    """What an error says, in the system's words after the path that they are about."""
    return f'{error.filename}: {error.strerror}' if isinstance(error, OSError) and error.filename else str(error)
