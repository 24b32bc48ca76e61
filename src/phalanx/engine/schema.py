"""Recipe schema: key, type, default and meaning of every option that all families share.

The keys of a family are in the `task.py` of its package. `tools/keys.py` writes these docstrings into docs/keys.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from torch.optim import Optimizer

from phalanx.data.cache import CacheOptions
from phalanx.engine.ema import EmaOptions
from phalanx.engine.optim import OPTIMIZERS, SCHEDULES, check_optimizer, check_schedule
from phalanx.engine.optim.clip import Clip
from phalanx.engine.optim.groups import Parameters
from phalanx.engine.optim.scaling import Scaling
from phalanx.engine.optim.schedule import Schedule
from phalanx.engine.precision import PrecisionOptions
from phalanx.parallel.gradients import GradientOptions
from phalanx.parallel.norms import NormSync
from phalanx.report.trackers import TRACKERS, Tracker
from phalanx.report.trackers.local import TensorBoard, VisualDL
from phalanx.system.buckets import BucketOptions


def check_exactly_one(options: object, *groups: Sequence[str]) -> None:
    """Raise ValueError, naming all offending groups, unless exactly one option of each group is set."""
    problems = []
    for group in groups:
        present = [name for name in group if getattr(options, name) is not None]
        if len(present) != 1:
            problems.append(f'give exactly one of {", ".join(group)}{", not " + " and ".join(present) if present else ""}')
    if problems:
        raise ValueError('; '.join(problems))


def check_positive(options: object, *names: str) -> None:
    """Raise ValueError if one of the named options is set and not above zero."""
    for name in names:
        value = getattr(options, name)
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f'{name} must be above 0, got {value}')


@dataclass(frozen=True, kw_only=True)
class Train:
    """Length, batch size, seed and initial weights."""

    steps: int | None = None
    """Number of optimizer updates, independent of the batch size. Alternative to `epochs`."""
    epochs: float | None = None
    """Number of passes over the training samples. Alternative to `steps`."""
    until: int | None = None
    """Stop at this step. The schedule still spans the full length; resume the run to continue."""
    global_batch_size: int | None = None
    """Samples per step over all ranks and micro-batches. The result does not depend on the number of ranks."""
    batch_size_per_rank: int | None = None
    """Samples per step and rank: more ranks make a larger global batch (see `scaling`). A run resumed with another number of
    ranks continues at the same sample; `epochs` still counts epochs and `steps` still counts steps."""
    micro_batches: int | Literal['auto'] = 1
    """Gradient accumulation steps per rank, to save memory. A batch norm sees one micro-batch at a time (with
    `norm_sync: global` that of all ranks). `auto`: the fewest that fit the device, predicted at each start."""
    seed: int = 0
    """Random seed for data order, augmentation, initialisation and dropout."""
    workers: int = 2
    """DataLoader workers per rank; 0 loads samples in the training process."""
    cache: CacheOptions | None = None
    """Cache of decoded images, shared by all ranks and workers of a node; saves decoding from the second epoch on."""
    bad_samples: int = 0
    """Number of unreadable samples to tolerate before the run stops. Each is reported and replaced by the next sample."""
    init_from: str | None = None
    """Initial weights: a run folder, a checkpoint, a `.safetensors`, `.pdparams`, `.pth` or `.npz` file, an archive, an address
    `https://...` or `hf://OWNER/REPO[@REVISION][/FILE]`, or a name from `phalanx weights`. Tensors whose names and shapes match
    are loaded."""
    init_part: Literal['all', 'backbone'] = 'all'
    """`backbone`: load only the backbone from `init_from`, for example from a classifier."""
    init_misshapen: Literal['refuse', 'skip'] = 'skip'
    """Tensors that are missing in `init_from` or have another shape, for example a head for other classes. `skip`: keep their
    random initialisation and list them in the report. `refuse`: stop with an error."""
    init_classes: tuple[str, ...] | Path | None = None
    """Names of the classes, characters or tokens of `init_from` in order, or a file with one per line. Rows of the heads whose
    names also occur here are loaded. Not needed for run folders and published weights, whose names are known."""
    init_networks: dict[str, str] | None = None
    """Distillation: initial weights per network (`teacher: teacher.safetensors`)."""
    freeze: tuple[str, ...] = ()
    """Modules to freeze, for example `backbone`, `backbone.stages.0`, or all norms of the backbone, `backbone.*.norm`: neither
    their parameters nor their batch-norm statistics change. For a lower learning rate instead, use `parameters.rules`."""
    freeze_steps: int | None = None
    """Unfreeze after this many steps; null freezes for the whole run. Saves no computation: it lets a new head settle before
    its gradients reach pretrained weights."""
    channels_last: bool = False
    """Store feature maps in NHWC order: faster on tensor cores and for bf16 on CPUs."""
    compile: bool = False
    """Compile the network with torch.compile."""
    cuda_graph: bool = False
    """Replay the network as CUDA graphs, which saves kernel launches. For images of one size; no effect on CPUs."""

    def compile_options(self, device_type: str) -> dict[str, str] | None:
        """Arguments of torch.compile; None to run without it."""
        if self.cuda_graph and device_type == 'cuda':
            return {'mode': 'reduce-overhead'} if self.compile else {'backend': 'cudagraphs'}
        return {} if self.compile else None

    @property
    def least_micro_batches(self) -> int:
        """Micro-batches; of `auto`, the fewest that may be chosen."""
        return 1 if self.micro_batches == 'auto' else self.micro_batches

    def global_batch(self, world_size: int) -> int:
        """Samples per step over all ranks."""
        return self.global_batch_size or (self.batch_size_per_rank or 0) * world_size

    def __post_init__(self) -> None:
        check_exactly_one(self, ('steps', 'epochs'), ('global_batch_size', 'batch_size_per_rank'))
        check_positive(
            self, 'steps', 'epochs', 'until', 'micro_batches', 'global_batch_size', 'batch_size_per_rank', 'freeze_steps'
        )
        if self.freeze_steps is not None and not self.freeze:
            raise ValueError(f'freeze_steps: {self.freeze_steps} has no effect without train.freeze; set train.freeze too')
        for name in ('workers', 'bad_samples', 'seed'):
            if getattr(self, name) < 0:
                raise ValueError(f'{name} cannot be negative, got {getattr(self, name)}')
        if self.seed >= 2**63:
            raise ValueError(f'seed must be below 2^63, got {self.seed}')


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Evaluation on the samples of `eval`, during training and at its end."""

    enabled: bool = True
    """Enable evaluation; false only trains."""
    every: int | None = None
    """Steps between evaluations. Alternative to `every_epochs`. The end of the run is always evaluated."""
    every_epochs: float | None = None
    """Epochs between evaluations."""
    batch_size: int = 1
    """Samples per forward pass and rank; above 1, all images of a batch must have the same size."""
    patience: int | None = None
    """Early stopping: end the run after this many evaluations in a row without a new best."""
    start: bool = True
    """Evaluate before the first step if `train.init_from` provides the whole network, heads included, and save it as the
    checkpoint of step 0: the best one, until an evaluation is better."""
    loss: bool = False
    """Also compute the loss on the evaluation samples (`validation_loss`); doubles the evaluation time. The samples get the
    training transforms with fixed random numbers, so that the value is comparable with the training loss."""

    def __post_init__(self) -> None:
        check_positive(self, 'every', 'every_epochs', 'batch_size', 'patience')


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Checkpoint interval and retention."""

    every: int | None = None
    """Steps between checkpoints. Alternative to `every_epochs`. The end of the run and a stop by the user are always saved."""
    every_epochs: float | None = None
    """Epochs between checkpoints."""
    keep: int = 3
    """Number of recent checkpoints to keep, in addition to the best one."""
    asynchronous: bool = True
    """Write checkpoints in the background. A crash then loses at most one interval plus the steps made during the write; false
    pauses training for each write, and a crash loses at most one interval."""

    def __post_init__(self) -> None:
        check_positive(self, 'every', 'every_epochs', 'keep')


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Logging, experiment trackers and report."""

    every: int = 10
    """Steps between log lines."""
    trackers: tuple[Annotated[partial[Any], TRACKERS], ...] = (partial(TensorBoard),)
    """Experiment trackers, which receive log lines and evaluations from the main rank."""
    visualdl: bool = False
    """Shorthand for `visualdl` in `trackers`."""
    pictures: int = 8
    """Number of evaluation samples to show in the report."""

    def __post_init__(self) -> None:
        check_positive(self, 'every')
        if self.pictures < 0:
            raise ValueError(f'pictures cannot be negative, got {self.pictures}')
        names = [_name(build) for build in self.trackers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f'trackers: {twice[0]} is listed twice; remove one')

    def tracker_builders(self) -> dict[str, Callable[[], Tracker]]:
        """Builders of all trackers, by name."""
        # `visualdl` is the switch of the Paddle projects; an entry in `trackers` wins.
        builders: dict[str, Callable[[], Tracker]] = {_name(build): build for build in self.trackers}
        return {'visualdl': VisualDL, **builders} if self.visualdl else builders


def _name(build: partial[Any]) -> str:
    return next(name for name, kind in TRACKERS.items() if kind is build.func)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Keys shared by all families."""

    task: str
    train: Train
    optimizer: Annotated[partial[Optimizer], OPTIMIZERS, check_optimizer]
    schedule: Annotated[partial[Schedule], SCHEDULES, check_schedule]
    parameters: Parameters = field(default_factory=Parameters)
    """Weight decay and learning-rate factors per parameter."""
    clip: Clip | None = None
    """Gradient clipping."""
    ema: EmaOptions | None = None
    """Exponential moving average of the weights, used for evaluation and export."""
    precision: PrecisionOptions = field(default_factory=PrecisionOptions)
    gradients: GradientOptions = field(default_factory=GradientOptions)
    """Gradient communication between ranks, compressed for slow networks."""
    norm_sync: NormSync = 'global'
    """Batch-norm statistics (SyncBN): `off` per rank, `node` over the ranks of a node, `global` over all ranks, which makes the
    result independent of their number. `frozen` keeps those of the initial weights, for fine-tuning on few samples."""
    scaling: Scaling = field(default_factory=Scaling)
    """Scaling of the learning rate with the global batch size."""
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    report: ReportOptions = field(default_factory=ReportOptions)
    buckets: BucketOptions = field(default_factory=BucketOptions)
    """Cache of data sets in object stores: `data.root: s3://BUCKET/PREFIX`, also gs://, az:// and https://."""
    device: Literal['auto', 'cpu', 'cuda'] = 'auto'
    """Device of each rank; auto uses CUDA if available."""

    def __post_init__(self) -> None:
        if self.gradients.compression == 'power_sgd' and self.precision.dtype == 'fp16':
            raise ValueError(
                'gradients.compression: power_sgd needs precision.dtype bf16 or fp32: '
                'an occasional overflow of fp16 would stay in its error feedback and spoil all later steps'
            )
