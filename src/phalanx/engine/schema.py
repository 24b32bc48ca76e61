"""Every general option of a recipe: its key, type, default and meaning. What belongs to a family stands in its `task.py`."""

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
from phalanx.report.trackers import TRACKERS, TensorBoard, Tracker, VisualDL


def check_exactly_one(options: object, *groups: Sequence[str]) -> None:
    """Raises ValueError, naming all groups that are wrong, unless of each exactly one of the named options is set."""
    wrong = []
    for group in groups:
        said = [name for name in group if getattr(options, name) is not None]
        if len(said) != 1:
            wrong.append(f'give exactly one of {", ".join(group)}{", not " + " and ".join(said) if said else ""}')
    if wrong:
        raise ValueError('; '.join(wrong))


def check_positive(options: object, *names: str) -> None:
    """Raises ValueError when one of the named options is set and not above zero."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise ValueError(f'{name} must be above 0, got {value}')


@dataclass(frozen=True, kw_only=True)
class Train:
    """How long, how much at once, and from which random numbers."""

    steps: int | None = None
    """Optimizer updates, whatever the batch; or `epochs`."""
    epochs: float | None = None
    """Passes over the training samples; or `steps`."""
    until: int | None = None
    """Ends the run at this step already; the schedule still spans the whole length; resuming continues it."""
    global_batch_size: int | None = None
    """Samples of one step over all ranks and micro-batches: the training does not depend on the number of ranks."""
    batch_size_per_rank: int | None = None
    """Samples of one step on one rank: more ranks make a larger global batch (see `scaling`). A run that continues with another
    number of ranks continues at its sample: `epochs` stay epochs, `steps` stay steps."""
    micro_batches: int = 1
    """Forward and backward passes that a rank takes its share of a step in, one after the other, to save memory: gradient
    accumulation. A batch norm then sees one micro-batch at a time (under `norm_sync: global` that of all ranks)."""
    seed: int = 0
    """Everything random follows from it."""
    workers: int = 2
    """Loader processes a rank; 0 loads in the training process."""
    cache: CacheOptions | None = None
    """Keep decoded images for all ranks and workers of a node: from the second pass on they need not be decoded."""
    bad_samples: int = 0
    """How many unreadable samples may be skipped (reported, replaced by the next) before the run stops."""
    init_from: str | None = None
    """Weights to start from: a run folder, a checkpoint, a `.safetensors`, `.pdparams`, `.pth` or `.npz` file, an archive, an
    address `https://...` or `hf://OWNER/REPO[@REVISION][/FILE]`, a name that `phalanx weights` lists. What fits is taken."""
    init_part: Literal['all', 'backbone'] = 'all'
    """`backbone`: take no more than the backbone from `init_from`, which may be a classifier's file."""
    init_misshapen: Literal['refuse', 'skip'] = 'skip'
    """`skip`: what is missing in `init_from` or has another shape there, a head for other classes say, stays as initialised;
    the report names it. `refuse`: that is an error."""
    init_classes: tuple[str, ...] | Path | None = None
    """The names of the classes or characters of `init_from`, in their order, or a file with one a line: rows of its heads whose
    names are here too are taken. Those of a run folder and of the list of published weights are known without."""
    init_networks: dict[str, str] | None = None
    """Distillation: weights for the networks that are to start from their own, by name (`teacher: teacher.safetensors`)."""
    freeze: tuple[str, ...] = ()
    """Parts of the network, `backbone` or `backbone.stages.0` say, that keep the weights they start from, and the statistics of
    their norms; the rest trains. A part can also learn more slowly: `parameters.rules` with an `lr_factor`."""
    freeze_steps: int | None = None
    """How many steps at the start `freeze` is for; none given, the whole run. It saves no computation; it lets a new head
    settle before its gradients reach what the weights know."""
    channels_last: bool = False
    """Keep feature maps in NHWC order in memory: faster on tensor cores and in bf16 on CPUs."""
    compile: bool = False
    """Run the network through torch.compile."""
    cuda_graph: bool = False
    """Replay the network's kernels as CUDA graphs, which spares the host their launches. Where images keep one size; on CPUs
    it changes nothing."""

    def compile_options(self, device_type: str) -> dict[str, str] | None:
        """What torch.compile is to be called with; None: not at all."""
        if self.cuda_graph and device_type == 'cuda':
            return {'mode': 'reduce-overhead'} if self.compile else {'backend': 'cudagraphs'}
        return {} if self.compile else None

    def global_batch(self, world_size: int) -> int:
        """The samples of one step over all ranks."""
        return self.global_batch_size or (self.batch_size_per_rank or 0) * world_size

    def __post_init__(self) -> None:
        check_exactly_one(self, ('steps', 'epochs'), ('global_batch_size', 'batch_size_per_rank'))
        check_positive(
            self, 'steps', 'epochs', 'until', 'micro_batches', 'global_batch_size', 'batch_size_per_rank', 'freeze_steps'
        )
        if self.freeze_steps is not None and not self.freeze:
            raise ValueError(f'freeze_steps: {self.freeze_steps} is for the parts in train.freeze, which names none')
        for name in ('workers', 'bad_samples', 'seed'):
            if getattr(self, name) < 0:
                raise ValueError(f'{name} cannot be negative, got {getattr(self, name)}')
        if self.seed >= 2**63:
            raise ValueError(f'seed must be below 2^63, got {self.seed}')


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """When the samples of `eval` are evaluated, while training and at its end."""

    enabled: bool = True
    """Evaluate at all; with false, a run only trains."""
    every: int | None = None
    """Steps between evaluations; or `every_epochs`. The end of the run is always evaluated."""
    every_epochs: float | None = None
    """Passes over the training samples between evaluations."""
    batch_size: int = 1
    """Samples of one forward pass on one rank; above 1 all images of a batch must have one size."""
    patience: int | None = None
    """Early stopping: the run ends after so many evaluations in a row that were not better than the best."""
    start: bool = True
    """Where `train.init_from` gives the whole network, heads included, evaluate it before the first step too: the run then says
    when it did not become better than that."""
    loss: bool = False
    """Also the loss of these samples (`validation_loss`), which takes as long again. They are transformed as those to train
    with, always by the same random numbers, so that it can be compared with the loss of the training."""

    def __post_init__(self) -> None:
        check_positive(self, 'every', 'every_epochs', 'batch_size', 'patience')


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When the run is saved, and how much of that is kept."""

    every: int | None = None
    """Steps between checkpoints; or `every_epochs`. The end of the run and a stop by the user are always saved."""
    every_epochs: float | None = None
    """Passes over the training samples between checkpoints."""
    keep: int = 3
    """How many of the newest to keep; the best one is kept besides."""
    asynchronous: bool = True
    """Train on while a checkpoint is written; a kill then costs one interval at most and the steps made meanwhile. Without,
    every checkpoint costs the time of writing it, and a kill one interval at most."""

    def __post_init__(self) -> None:
        check_positive(self, 'every', 'every_epochs', 'keep')


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What the run reports."""

    every: int = 10
    """Steps between log lines."""
    trackers: tuple[Annotated[partial[Any], TRACKERS], ...] = (partial(TensorBoard),)
    """Experiment trackers that get the numbers of log lines and evaluations, from the main rank."""
    visualdl: bool = False
    """Short for `visualdl` among the trackers."""
    pictures: int = 8
    """Evaluation samples shown in the report."""

    def __post_init__(self) -> None:
        check_positive(self, 'every')
        if self.pictures < 0:
            raise ValueError(f'pictures cannot be negative, got {self.pictures}')
        names = [_name(build) for build in self.trackers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f'trackers: {twice[0]} is there twice')

    def tracker_builders(self) -> dict[str, Callable[[], Tracker]]:
        """The builders of all trackers, by name."""
        builders: dict[str, Callable[[], Tracker]] = {_name(build): build for build in self.trackers}
        return {'visualdl': VisualDL, **builders} if self.visualdl else builders


def _name(build: partial[Any]) -> str:
    return next(name for name, kind in TRACKERS.items() if kind is build.func)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The general part of a recipe."""

    task: str
    train: Train
    optimizer: Annotated[partial[Optimizer], OPTIMIZERS, check_optimizer]
    schedule: Annotated[partial[Schedule], SCHEDULES, check_schedule]
    parameters: Parameters = field(default_factory=Parameters)
    """Which parameters decay, and with which share of the learning rate each learns."""
    clip: Clip | None = None
    """Gradient clipping."""
    ema: EmaOptions | None = None
    """The exponential moving average of the weights, which is evaluated and exported."""
    precision: PrecisionOptions = field(default_factory=PrecisionOptions)
    gradients: GradientOptions = field(default_factory=GradientOptions)
    """How gradients are sent between ranks: compressed, where the network is slow."""
    norm_sync: NormSync = 'global'
    """SyncBN: whose statistics a batch norm uses: its own rank's, those of its node's ranks, or those of all ranks, which makes
    world sizes equal.
    `frozen`: those of the initial weights, which then stay, for training on with few samples."""
    scaling: Scaling = field(default_factory=Scaling)
    """How the learning rate follows the global batch size."""
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    report: ReportOptions = field(default_factory=ReportOptions)
    device: Literal['auto', 'cpu', 'cuda'] = 'auto'
    """Where ranks compute; auto takes CUDA devices when there are any."""

    def __post_init__(self) -> None:
        if self.gradients.compression == 'power_sgd' and self.precision.dtype == 'fp16':
            raise ValueError(
                'gradients.compression: power_sgd needs precision.dtype bf16 or fp32: '
                'what it remembers of a step that overflows, as steps of fp16 do now and then, spoils every later one'
            )
