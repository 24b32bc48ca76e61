"""`phalanx bench scaling`: one rank compared with several, on one node or many."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx.bench import scaling
from phalanx.cli.notes import open_with_notes
from phalanx.cli.ranks import build_cluster, read_launch
from phalanx.config.arguments import collect_assignments
from phalanx.engine.checks import check_parts
from phalanx.engine.job import Job
from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import Flags
from phalanx.launch.start import Start
from phalanx.parallel import dist
from phalanx.system.cores import threads_per_rank
from phalanx.system.errors import RequestError, RunError


def bench_cluster(given: argparse.Namespace, job: Job | None) -> tuple[Flags, Start, Cluster | None]:
    """Flags and start of a benchmark, and the cluster that they request (None: this process is a rank already, or alone).

    Raises RequestError.
    """
    if given.ssh:
        raise RequestError('--ssh: not supported by benchmarks; start the same command on each node')
    flags, start = read_launch(given)
    return flags, start, None if dist.is_launched() else build_cluster(flags, start, job)


def bench_scaling(given: argparse.Namespace, _: Sequence[str]) -> int:
    # check the request and the recipe for the largest world before anything is trained
    job = open_with_notes(given.recipe, collect_assignments(given))
    try:
        worlds = sorted({int(word) for word in given.world.split(',')})
    except ValueError:
        raise RequestError(f'--world {given.world}: expected numbers of ranks such as 1,2,4') from None
    if worlds[0] < 1 or given.repeats < 1 or (given.steps < 5 and not given.full):
        raise RequestError('--world and --repeats must be at least 1, --steps at least 5')
    check_parts(job, worlds[-1])
    # all runs use the same threads per rank, those of the largest world: else one rank would get all cores
    nodes = _nodes(given, worlds, job)
    ranks_here = min(worlds[-1], nodes.ranks_each if nodes else worlds[-1])
    threads = given.threads or threads_per_rank(ranks_here)
    folder = given.out or Path('runs') / 'scaling' / job.name
    comparison = scaling.Comparison(
        given.recipe, tuple(given.set), worlds, None if given.full else given.steps, given.repeats, threads, folder, nodes
    )
    try:
        runs = scaling.run_all(comparison, {world: scaling.total_steps(job, world) for world in worlds})
    except RunError as error:
        print(f'the comparison failed: {error}', file=sys.stderr)
        return 1
    if not runs:
        return 0  # another node: the first one writes the results
    record, text = scaling.write(folder, scaling.collect_facts(job, comparison), job.task.main_metric, runs)
    print(json.dumps(record) if given.json else f'{text}\npage: {folder / "scaling.html"}')
    return 0


def _nodes(given: argparse.Namespace, worlds: Sequence[int], job: Job) -> scaling.Nodes | None:
    """Nodes of the flags or of a scheduler (None: this one alone), with their number of ranks. Raises RequestError."""
    flags, start, cluster = bench_cluster(given, job)
    if dist.is_launched():
        raise RequestError('a scaling comparison starts its own ranks: start it once, or once per node, not once per rank')
    if cluster is None or cluster.rendezvous is None:
        if flags.asks_for_ranks and flags.ips is None and not start.per:
            raise RequestError('--world gives the numbers of ranks: leave out the other flags of the launch, or name the nodes')
        return None
    number = cluster.nodes.index(cluster.address) if cluster.nodes else cluster.wanted_rank
    if number is None or cluster.min_nodes != cluster.max_nodes:
        raise RequestError(
            'a scaling comparison needs nodes with fixed numbers: --ips A,B,..; or --nnodes N --master IP:PORT --rank R'
        )
    host, port = cluster.rendezvous
    addresses = cluster.nodes or (f'[{host}]' if ':' in host else host,)
    nodes = scaling.Nodes(cluster.max_nodes, number, addresses, cluster.ranks_per_node, port, flags.join_timeout)
    try:
        for world in worlds:
            nodes.of(world)
    except ValueError as error:
        raise RequestError(str(error)) from None
    return nodes
