"""Notes on a recipe: keys of other projects that do nothing here, and keys of former versions."""

import sys
from collections.abc import Sequence

from phalanx.engine.job import Job, open_job
from phalanx.parallel import dist


def print_notes(job: Job) -> None:
    """Print the notes of `job` on stderr, where they disturb no JSON; one rank of several does."""
    if dist.rank_of_environment() == 0:
        for note in job.notes:
            print(f'note: {note}', file=sys.stderr)


def open_with_notes(recipe: str, assigned: Sequence[tuple[str, str]]) -> Job:
    """Open the job of `recipe`, and print its notes. Raises ConfigError or RequestError."""
    job = open_job(recipe, assigned)
    print_notes(job)
    return job
