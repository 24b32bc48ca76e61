"""Process of one rank: joins the process group, picks its device, builds the trainer and runs it."""

import contextlib
import gc
import json
import logging
import math
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import phalanx
from phalanx.config.arguments import repeat_options
from phalanx.config.read import to_plain
from phalanx.config.show import to_yaml
from phalanx.engine import evaluation
from phalanx.engine.checks import check_initial, check_parts
from phalanx.engine.device import pick_device, place_network
from phalanx.engine.fit import agree_on_micro_batches, predict_fit
from phalanx.engine.folder import (
    START,
    check_folder,
    describe_start,
    differences,
    is_continued,
    lock_folder,
    name_logs,
    resolve_names,
    set_aside,
)
from phalanx.engine.initial import load_trained
from phalanx.engine.job import Job, fetch_run
from phalanx.engine.loader import BATCH_TIMEOUT_S, DIED, TIMED_OUT, end_workers
from phalanx.engine.parts import Parts
from phalanx.engine.precision import Precision
from phalanx.engine.progress import Progress
from phalanx.engine.samples import rank_parts, share_samples
from phalanx.engine.schema import Train
from phalanx.engine.timeline import Timeline
from phalanx.engine.trainer import Trainer
from phalanx.nn.backbones.timm_backbone import find_pretrained_backbones
from phalanx.parallel import dist
from phalanx.parallel.flight_recorder import write_records
from phalanx.parallel.heartbeat import FOLDER
from phalanx.report.evaluation import Evaluation
from phalanx.report.readable import pluralize
from phalanx.report.report import Callback, Report
from phalanx.report.trackers import check_trackers
from phalanx.report.trainjob import trainjob_tracker
from phalanx.system.compiler import use_own_cache
from phalanx.system.disk import remove_own, write_atomically
from phalanx.system.errors import CheckpointError, RequestError, RunError, SameRequestError, StoppedError
from phalanx.system.memory import keep_freed_memory
from phalanx.system.paths import parse_path
from phalanx.system.stops import in_main_thread, interrupt_at_stops, stop_signals
from phalanx.weights.checkpoint import Checkpoints, LoadedCheckpoint, load, resolve_pointer
from phalanx.weights.finding import find, is_remote

log = logging.getLogger('phalanx')
STDOUT, STDERR = 1, 2
# Seconds in which two signals count as one request: a scheduler may signal every process, and the launcher forwards its own.
SAME_REQUEST = 3
GIT_S = 5  # seconds to wait for the state of the repository

PART = re.compile(r'\.(config\.yml|report\.html|table\.json|summary\.json|start\.json|curves\.json|index\.json)\.\d+\.part')
FULL = 'out of memory ({}): use a smaller global batch, more train.micro_batches, smaller images or fewer train.workers'
CURES = {  # pattern of torch's message -> explanation and fix
    "can't allocate memory": FULL,
    'out of memory': FULL,  # of a CUDA device
    'could not create a primitive': FULL,  # oneDNN's message if a kernel does not fit into memory
    f'^{DIED}': 'a loader worker has died ({}); if the kernel killed it (see its log), use fewer train.workers',
    TIMED_OUT: (
        f'loader workers brought no batch for {BATCH_TIMEOUT_S} s: does the disk of data.root still respond? If it does, a '
        'batch takes longer than that: use more train.workers, smaller batches or images (see `phalanx bench data RECIPE`)'
    ),
}


def train(
    job: Job,
    resume: str | None = None,
    fresh: bool = False,
    *,
    parts: Parts | None = None,
    is_checked: bool = True,
    callback: Callback | None = None,
    stop: threading.Event | None = None,
    then: Callable[[torch.device], None] = lambda device: None,
) -> int:
    """Train on this rank; return 0 when the run ended, 128 + signal when it was stopped and saved.

    The run continues from its folder (the default, and `resume='auto'`) or from the checkpoint at `resume`, or starts over
    (`fresh`). `parts` come from the checks, which are made here unless the request `is_checked`. `callback` gets each event of
    the report (`Report`); `stop`, once set, stops the run as a signal does; `then` is called when the run ended, while the
    ranks are still a group. Raises RunError, BadSampleError, CheckpointError or OSError if the run failed, and RequestError.
    """
    parts = parts or rank_parts(job)
    micro_batches = predict_fit(job, parts)
    with process_group(job.recipe.device) as device:
        if not is_checked:
            parts = check_together(job, resume, fresh)
        job = agree_on_micro_batches(job, micro_batches)
        with explain_faults():
            status = run(job, resume, fresh, device, callback, parts, stop)
        gc.collect()  # frees DDP, which holds the process group: its threads can abort the process at interpreter exit
        dist.barrier()
        if status == 0:
            then(device)
    return status


def check_together(job: Job, resume: str | None, fresh: bool) -> Parts | None:
    """Check the request on rank 0, for all ranks; return the parts that it has built. Collective.

    Raises RequestError, on other ranks SameRequestError.
    """
    parts, problem = None, ''
    if dist.rank() == 0:
        try:
            parts = check_parts(job, dist.world_size())
            check_folder(job, resume, fresh)
            check_trackers(job.recipe.report.tracker_builders())
            if dist.world_size() == 1 or not remote_sources(
                job.recipe.train, parts.network
            ):  # else fetched once per node, see `run`
                check_initial(job, parts, resume, fresh)
        except RequestError as error:
            problem = str(error)
    if problem := dist.broadcast_object(problem):
        raise RequestError(problem) if dist.rank() == 0 else SameRequestError(problem)
    return parts


@contextlib.contextmanager
def process_group(wish: str) -> Iterator[torch.device]:
    """Join the process group, one that exists already if there is one; yields the requested device.

    A stop signal raises KeyboardInterrupt, at once while ranks wait for each other to join. Raises RunError if they do not
    come. A group that was there before is left as it was.
    """
    interrupt_at_stops()
    others = multiprocessing.active_children()  # of the program around us
    device = pick_device(wish, dist.local_rank())
    if device.type == 'cuda':
        torch.cuda.set_device(device)
    is_ours = dist.join(device)
    # Otherwise activations are mapped and cleared again in each step (see there).
    if device.type == 'cpu':
        keep_freed_memory()
    try:
        yield device
    except BaseException:
        # Peers will fail when our connection closes, and their launcher then ends us: ignore SIGTERM, so that our own error
        # is reported first.
        if is_ours and in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if is_ours and FOLDER in os.environ:  # our launcher shows them if another rank was aborted
            write_records(Path(os.environ[FOLDER]), dist.rank())
        end_workers(others)
        if is_ours:
            dist.leave(failed=True)
        raise
    end_workers(others)
    if is_ours:
        dist.leave()


@contextlib.contextmanager
def explain_faults() -> Iterator[None]:
    """Turn torch's errors for faults of the environment into a RunError with a fix."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = str(error)
        matches = (cure for pattern, cure in CURES.items() if re.search(pattern, message))
        cure = FULL if isinstance(error, MemoryError) else next(matches, None)
        if cure is None:
            raise
        raise RunError(cure.format(message.partition('\n')[0])) from error


def run(
    job: Job,
    resume: str | None,
    fresh: bool,
    device: torch.device,
    callback: Callback | None,
    parts: Parts | None,
    stop: threading.Event | None,
) -> int:
    """Run the training and return its exit status; nothing that it built is left afterwards."""
    with contextlib.ExitStack() as stack:
        if job.recipe.train.compile:
            use_own_cache()
        parts = parts or Parts(job.recipe, job.task)
        share_samples(job, parts)
        # The main rank alone reads and prepares the folder; the others learn where to continue.
        newest, notes = prepare_folder(job, resume, fresh, stack) if dist.rank() == 0 else (None, [])
        progress = dist.broadcast_object(Progress.of(newest.state, newest.step) if newest is not None else None)
        set_up_logging()
        if progress is None:
            fetch_initial_weights(job.recipe.train, parts.network)
        trainer = Trainer(job.recipe, job.task, folder=job.folder, device=device, progress=progress, parts=parts)
        checkpoint, notes = dist.broadcast_with_tensors((newest, notes))
        del newest
        resumed_from = None
        if checkpoint is not None:
            trainer.restore(checkpoint)
            resumed_from = checkpoint.path
            del checkpoint  # frees host memory: it is as large as model, optimizer and EMA together
        if job.mirror is not None and dist.rank() == 0:  # before the report, so that its last files are uploaded too
            stack.enter_context(job.mirror.publishing())
        report = Report(
            job.folder,
            place=job.place,
            main=dist.rank() == 0,  # the others print and write nothing
            name=job.name,
            total_steps=trainer.until,
            config=to_plain(job.resolved),
            trackers=job.recipe.report.tracker_builders() | trainjob_tracker(trainer.until),
            callback=callback,
        )
        stack.enter_context(report)
        if job.mirror is not None:
            job.mirror.warn = report.warning
        # Banner: remarks on the recipe, warnings, initial weights, where the run continues, and the ranks.
        for note in job.notes:
            report.note(note)
        disk = trainer.saver.disk_warning() if dist.rank() == 0 else None
        for note in [*notes, *trainer.notes, *([disk] if disk else [])]:
            report.warning(note)
        for loaded in trainer.initial:
            report.initial_weights(loaded.facts(), loaded.rows())
        if resumed_from is not None:
            report.resume(trainer.progress.step)
            report.note(f'resumed at step {trainer.progress.step} from {report.name_of(resumed_from)}')
            for note in filter(None, (describe_batch_change(trainer), describe_end(trainer))):
                report.note(note)
        report.world(run_facts(job, trainer), dist.gather_objects(rank_info(device)))
        # From here on a stop signal is a request; before, it ended the process at once, as there was nothing to save.
        trainer.flags.stop = stop
        caught = catch_signals(trainer)
        try:
            summary = trainer.train(report)
            summary |= {'differs': job.differs} if job.differs else {}
            report.finish(summary, repeat_options())
        except StoppedError as stopped:
            report.note(str(stopped))
            # Ranks may have received different signals, or none: all return the status of rank 0.
            return 128 + int(dist.broadcast_object(caught[0] if caught else signal.SIGTERM))
    return 0


def rank_info(device: torch.device) -> dict[str, str | int]:
    """Row of this rank in the table of ranks."""
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else f'cpu ({torch.get_num_threads()} threads)'
    node = os.environ.get('PHALANX_ADDRESS') or platform.node()
    return {'rank': dist.rank(), 'node': node, 'device': name, 'pid': os.getpid()}


def run_facts(job: Job, trainer: Trainer) -> dict[str, str]:
    """Facts printed in the start banner."""
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    stream, recipe = trainer.stream, job.recipe
    shares = f'{pluralize(stream.world_size, "rank")} x {pluralize(stream.micro_batches, "micro-batch", "micro-batches")}'
    return {
        'recipe': job.name,
        'run folder': f'{job.place}, here in {job.folder}' if job.mirror else str(job.folder),
        'model': f'{job.resolved.value["model"].value["name"].value}, {parameters / 1e6:.2f} M parameters',
        'data': f'{stream.size} training, {len(trainer.evalset)} evaluation samples',
        'length': f'{pluralize(trainer.steps, "step")} = {stream.epoch(trainer.steps):.1f} epochs',
        'global batch': f'{pluralize(stream.global_batch_size, "sample")}, {shares}',
        'learning rate': f'{trainer.lr:g} (scaling rule {recipe.scaling.rule})',
        'precision': f'{recipe.precision.dtype}, norm_sync {recipe.norm_sync}',
        **(
            {'EMA': f'decay {recipe.ema.decay:g}, used from step {trainer.ema.settling_updates:,}'}
            if recipe.ema and trainer.ema
            else {}
        ),
        **({'code': commit} if dist.rank() == 0 and (commit := commit_of(Path.cwd())) else {}),
        'versions': f'phalanx {phalanx.__version__}, torch {torch.__version__}, python {platform.python_version()}',
    }


def commit_of(folder: Path) -> str:
    """Commit of the git repository around `folder`, with its branch and `uncommitted changes`; empty without one."""
    words = ['git', '-C', str(folder), 'status', '--porcelain=v2', '--branch', '--untracked-files=no']
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors='replace', timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no git, or a repository on a slow disk
        return ''
    lines = done.stdout.splitlines()
    names = dict(line.removeprefix('# branch.').split(' ', 1) for line in lines if line.startswith('# branch.'))
    changed = ', uncommitted changes' if any(not line.startswith('#') for line in lines) else ''
    return f'commit {names["oid"][:12]} of {names["head"]}{changed}' if 'oid' in names else ''


def describe_batch_change(trainer: Trainer) -> str | None:
    """Describe the change of the global batch since earlier starts of a resumed run; None without a change."""
    before, train, stream, step = trainer.before, trainer.recipe.train, trainer.stream, trainer.started_at
    if not before.batches and train.global_batch_size is None:
        return f'the checkpoint does not record its global batch: assuming {stream.global_batch_size}, as now'
    if not before.batches or before.batches[-1][1] == stream.global_batch_size:
        return None
    # Length of the run as planned at the earlier global batch, to show the change.
    steps = train.steps or Timeline(tuple(before.batches)).last_step(train.epochs or 0, stream.size)
    return (
        f'resumed at sample {stream.position(step):,} (epoch {stream.epoch(step):.2f}): '
        f'ranks {before.ranks} -> {stream.world_size}, global batch {before.batches[-1][1]} -> {stream.global_batch_size}, '
        f'steps {step} of {steps} -> {step} of {trainer.steps} '
        f'({"train.steps counts updates of the weights" if train.steps else "train.epochs counts samples"})'
    )


def describe_end(trainer: Trainer) -> str | None:
    """Say that a resumed run is at its end; None if steps are left."""
    if trainer.progress.step < trainer.until:
        return None
    key = 'until' if trainer.until < trainer.steps else 'epochs' if trainer.recipe.train.steps is None else 'steps'
    return f'nothing is left to train: the run ends with step {trainer.until:,}; a larger train.{key} continues it'


def fetch_initial_weights(train: Train, network: nn.Module) -> None:
    """Download the initial weights once per node, while all ranks wait for the slowest, so that none times out.

    Raises FetchError on a node where the download fails.
    """
    sources = remote_sources(train, network)
    if not sources:
        return
    # Downloads take minutes, and ranks of other nodes may have the file already: all poll once per second until none is left.
    with ThreadPoolExecutor(1, 'fetch') as pool:
        fetching = pool.submit(lambda: [find(source) for source in sources])
        while dist.sum_over_ranks(torch.tensor(float(bool(wait([fetching], timeout=1).not_done)))):
            pass
    fetching.result()


def remote_sources(train: Train, network: nn.Module) -> list[str]:
    """Initial weights that have to be downloaded, also those that parts of `network` name."""
    own = (backbone.weights for _, backbone in find_pretrained_backbones(network))
    named = (train.init_from, *(train.init_networks or {}).values(), *own)
    return [source for source in named if source and is_remote(source)]


def evaluate(job: Job, weights: str | Path | None, *, raw: bool = False, pictures: int = 0) -> Evaluation:
    """Evaluate `weights` (None: the best of the run), shared by the ranks. Raises CheckpointError or BadSampleError.

    `raw`: the weights as trained, not their EMA. `pictures`: number of worst samples among the figures.
    """
    with process_group(job.recipe.device) as device:
        model = job.task.model()
        loaded = load_trained(model, job.task, weights or job.folder, raw=raw)
        if dist.rank() == 0:
            loaded.announce()
        parts = Parts(job.recipe, job.task)
        share_samples(job, parts, ['evaluation'])
        setup = evaluation.Setup(job.recipe, device, Precision(job.recipe.precision, device))
        place_network(model, device, channels_last=job.recipe.train.channels_last)
        result = evaluation.evaluate(job.task, model, setup, parts.evaluation)
        if not pictures or dist.rank() != 0:
            return result
        renderer = evaluation.SampleRenderer.from_model(model, job.task, parts.evaluation, job.recipe.train.seed, device)
        return evaluation.add_worst_pictures(result, renderer, pictures)


def set_up_logging() -> None:
    """Send the log of this rank to its file in the launcher's folder for logs, if there is one.

    If stdout already is that file, nothing is added on the main rank: what it prints is the same.
    """
    handler: logging.Handler = logging.NullHandler() if dist.rank() == 0 else logging.StreamHandler()
    if 'PHALANX_LOG_DIR' in os.environ:
        folder = Path(os.environ['PHALANX_LOG_DIR'])
        name_logs(folder, folder)  # of ranks whose disk rank 0 does not see
        folder.mkdir(parents=True, exist_ok=True)  # the earlier one was set aside with its run
        file = folder / f'workerlog.{dist.rank()}'
        if not (file.exists() and os.path.samestat(file.stat(), os.fstat(STDOUT))):
            handler = logging.FileHandler(file, mode=os.environ.get('PHALANX_LOG_MODE', 'w'), encoding='utf-8')
    handler.setFormatter(logging.Formatter('%(asctime)s %(levelname)s %(message)s'))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def prepare_folder(
    job: Job, resume: str | None, fresh: bool, stack: contextlib.ExitStack
) -> tuple[LoadedCheckpoint | None, list[str]]:
    """Prepare the run folder on the main rank; return the checkpoint to continue from, and notes for the report.

    The folder is locked against other runs until `stack` is closed.
    """
    notes: list[str] = []
    if job.mirror is not None:  # a restart may have moved this rank to another machine
        job.mirror.restore()
    if fresh and dist.restart_count() == 0 and (aside := set_aside(job.folder)):
        notes.append(f'the earlier run was moved to {aside}')
        name_logs(aside / 'log', job.folder / 'log')
    job.folder.mkdir(parents=True, exist_ok=True)
    # Lock the folder before anything in it is touched.
    stack.enter_context(lock_folder(job.folder))
    remove_partial_files(job.folder)
    own = Checkpoints(job.folder, keep=1)
    own.remove_leftovers()
    # The checkpoint to continue from.
    if resume is None or resume == 'auto':
        # A run without any step starts again: its recipe may name other initial weights now.
        checkpoint, damaged = own.newest() if own.has_steps() else (None, [])
    else:
        checkpoint, damaged = find_checkpoint(resume)
        # --resume FOLDER goes back: later checkpoints of this run are set aside. A restarted launch or job repeats the command
        # line, but must continue from what it has saved since.
        if dist.restart_count() == 0 and not is_continued(job.folder):
            notes += [f'later checkpoint set aside as {path}' for path in own.abandon(checkpoint)]
        elif (since := own.newest()[0]) is not None and since.step > checkpoint.step:
            checkpoint, damaged = since, []
    notes += [f'skipped a damaged checkpoint: {problem}' for problem in damaged]
    if checkpoint is not None:
        notes += [f'continues with another setting: {line}' for line in differences(job)]
    # Overwrite the recipe last: `differences` compares with that of the earlier start.
    write_atomically(job.folder / 'config.yml', to_yaml(resolve_names(job)).encode(), durable=True)
    write_atomically(job.folder / START, json.dumps(describe_start()).encode(), durable=True)
    return checkpoint, notes


def remove_partial_files(folder: Path) -> None:
    """Remove partial files left by a killed start. The run folder is locked."""
    for part in (*folder.glob('.*.part'), *folder.glob('pictures/.*.part')):
        if PART.fullmatch(part.name):
            remove_own(part)


def find_checkpoint(path: str) -> tuple[LoadedCheckpoint, list[str]]:
    """Load the checkpoint at `--resume PATH` (a run's newest, or one itself); return it and damaged ones. Raises
    CheckpointError.
    """
    checkpoints = Checkpoints(fetch_run(parse_path(path)), keep=1)
    checkpoint, damaged = checkpoints.newest() if checkpoints.root.is_dir() else (load(resolve_pointer(checkpoints.folder)), [])
    if checkpoint is None:
        raise CheckpointError(f'--resume {path}: it contains no complete checkpoint; ' + '; '.join(damaged))
    return checkpoint, damaged


def catch_signals(trainer: Trainer) -> list[int]:
    """Turn stop signals into a request to stop at the next step; a second request ends the process at once.

    Returns the list that will hold the caught signals. Outside the main thread there are none.
    """
    caught: list[int] = []
    first = math.inf  # time of the first request
    weak = weakref.ref(trainer)  # the handler outlives the run and must not keep the trainer alive

    def request_stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if caught and time.monotonic() - first < SAME_REQUEST:
            return
        # A second request: the user does not want to wait. The default action ends the process.
        if caught:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        caught.append(number)
        first = time.monotonic()
        if (running := weak()) is not None:
            running.flags.signalled = True
        message = f'{signal.Signals(number).name}: stopping after this step, with a checkpoint'
        log.warning('%s', message)
        if dist.rank() == 0:
            with contextlib.suppress(OSError):  # not by print, which the signal may have interrupted
                os.write(STDERR, f'\n{message}; a second signal after {SAME_REQUEST} s ends at once, without one\n'.encode())

    for number in stop_signals() if in_main_thread() else ():
        signal.signal(number, request_stop)
    return caught
