"""`phalanx bench memory`: predicted memory of a training step, and what fits a device."""

from typing import Any

from phalanx.bench.show import format_text
from phalanx.engine.fit import StepMemory, fewest_micro_batches, largest_that_fits, usable
from phalanx.engine.job import Job
from phalanx.engine.parts import Parts
from phalanx.report.readable import format_mebibytes, pluralize

Figures = dict[str, Any]  # as `--json` prints them


def predict_memory(job: Job, parts: Parts, *, ranks: int, device_mb: float, is_gpu: bool) -> Figures:
    """Memory of a step on each of `ranks`, and what fits a device of `device_mb` MiB, of which tensors can use a part."""
    train, limit = job.recipe.train, usable(device_mb)
    memory = StepMemory(job.recipe, parts, ranks, is_gpu)
    share = -(-train.global_batch(ranks) // ranks)
    try:
        fitting = fewest_micro_batches(memory, share, limit)
    except ValueError:  # this loss allows one only
        fitting = None
    count = train.micro_batches if train.micro_batches != 'auto' else fitting or 1
    peak = memory.peak_mb(share, count)
    return {
        'recipe': job.name,
        'precision': job.recipe.precision.dtype,
        'ranks': ranks,
        'samples': share,  # of a step, per rank
        'micro_batches': count,
        'peak_mb': peak,
        'parts': memory.parts_mb(share, count),
        'device_mb': device_mb,
        'usable_mb': limit,
        'fits': peak <= limit,
        'largest_batch_size_per_rank': largest_that_fits(memory, limit),  # in one micro-batch
        'fitting_micro_batches': fitting,  # fewest for the samples of the recipe; None if no number fits
    }


def format_memory(figures: Figures) -> str:
    samples = pluralize(figures['samples'], 'sample')
    counts = pluralize(figures['micro_batches'], 'micro-batch', 'micro-batches')
    device, limit = format_mebibytes(figures['device_mb']), format_mebibytes(figures['usable_mb'])
    rows = [{'': part, 'at the peak': format_mebibytes(size)} for part, size in figures['parts'].items()]
    rows.append({'': 'peak', 'at the peak': format_mebibytes(figures['peak_mb'])})
    fitting, largest = figures['fitting_micro_batches'], figures['largest_batch_size_per_rank']
    micro = (
        f'{samples} fit with train.micro_batches={fitting}' if fitting else f'no number of micro-batches makes {samples} fit'
    )
    one = f'in one micro-batch at most {pluralize(largest, "sample")} fit' if largest else 'not even one sample fits'
    return '\n'.join(
        [
            f'{figures["recipe"]}: {samples} per rank and step in {counts}, {figures["precision"]} (predicted, not measured)',
            format_text(rows),
            f'{"fits" if figures["fits"] else "does not fit"}: of a device with {device}, tensors can use {limit}',
            f'{micro}; {one}',
        ]
    )
