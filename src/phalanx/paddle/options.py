"""Options of the programs of PaddleSeg, PaddleDetection and PaddleOCR that the commands accept too."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from phalanx.config.arguments import Assignments

EMPTY = ('', 'null', 'none', 'false', '~')  # values that name nothing

# option of train.py -> the assignment to the recipe that it makes
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
    'precision': 'precision.dtype={}',  # after `amp`, so that it chooses the dtype
    'eval': 'evaluate.enabled=true',
    'use_vdl': 'report.visualdl=true',
    'use_wandb': 'report.trackers=[tensorboard, wandb]',
    'use_ema': 'ema={{decay: 0.999, kind: ramp}}',  # PaddleSeg's
    'early_stop_intervals': 'evaluate.patience={}',
    'slim_config': 'slim_config={}',
}
TAKEN_ALONG = {  # options without effect here, with the reason
    'use_mpio': 'loader workers are processes in any case',
    'debug': 'every rank writes its own log',
    'fleet': 'the launcher sets the number of devices',
    'vdl_log_dir': 'VisualDL records lie in the run folder',
    'amp_level': "torch's autocast is what level O1 is",
    'profiler_options': '`phalanx bench` measures',
    **dict.fromkeys(('output_op', 'for_fd'), '`phalanx export` takes its own options'),
    **dict.fromkeys(('to_static', 'to_static_training'), 'set train.compile, which serves the same purpose, speed'),
}

# keys of configurations that command lines of the originals set, and that are options of commands here, with recipes too
CHECKPOINTS = ('Global.checkpoints',)  # train: what to resume
FOLDERS = ('save_dir', 'Global.save_model_dir')  # train: the run folder
WEIGHTS = ('weights', 'Global.pretrained_model', 'Global.checkpoints')  # other commands; the last one given counts, as there
IMAGES = ('Global.infer_img',)
EXPORTED = ('Global.save_inference_dir',)


def take_assigned(assigned: Assignments, keys: Sequence[str]) -> tuple[list[str], Assignments]:
    """Values that assignments give to `keys`, in the order of `keys` and without empty ones, and the other assignments.

    A path without suffix gets `.pdparams` where such a file exists: the originals write paths so.
    """
    pairs = [(text.partition('='), (text, origin)) for text, origin in assigned]
    values = [value for each in keys for (key, _, value), _ in pairs if key == each and value.lower() not in EMPTY]
    complete = [f'{value}.pdparams' if Path(f'{value}.pdparams').is_file() else value for value in values]
    return complete, [assignment for (key, _, _), assignment in pairs if key not in keys]


def take_weights(given: argparse.Namespace, assigned: Assignments) -> Assignments:
    """Set `given.weights` from assignments, unless it is set, and return the other assignments."""
    weights, others = take_assigned(assigned, WEIGHTS)
    given.weights = given.weights or next(reversed(weights), None)
    return others
