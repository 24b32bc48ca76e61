"""`phalanx plan`: predicted speed and cost of a recipe on more nodes."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace

from phalanx.bench import network, train
from phalanx.bench.network import Link, Network
from phalanx.bench.plan import Prediction, plan
from phalanx.bench.profile import Profile
from phalanx.bench.show import format_text
from phalanx.cli.bench_options import plan_parser
from phalanx.cli.notes import open_with_notes
from phalanx.config.arguments import collect_assignments
from phalanx.engine.checks import check_parts
from phalanx.engine.device import pick_device
from phalanx.report.readable import format_duration, format_number, format_percent
from phalanx.system.errors import RequestError


def command(words: Sequence[str]) -> int:
    """Exit status: 0 done, 2 the request was wrong."""
    given = plan_parser().parse_args(words)
    try:
        # the network of the plan, and the profile of a step: measured here, or read
        nodes = parse_counts(given.nodes)
        if given.devices_per_node < 1:
            raise ValueError(f'--devices_per_node must be at least 1, got {given.devices_per_node}')
        joined = Network(
            between=Link(network.parse_cable_bandwidth(given.bandwidth), network.parse_latency(given.latency)),
            within=Link(network.parse_bandwidth(given.node_bandwidth), network.parse_latency(given.node_latency)),
            host=network.parse_bandwidth(given.host_bandwidth),
        )
        profile = Profile.read(given.profile) if given.profile else _measure(given)
    except ValueError as error:
        raise RequestError(str(error)) from None
    except OSError as error:
        raise RequestError(f'{error.filename}: {error.strerror}') from None
    # a prediction per number of nodes; the suggestions are for the largest
    predictions = plan(profile, nodes, given.devices_per_node, joined)
    tips = find_tips(profile, predictions[-1], joined)
    if given.json:
        print(json.dumps({'recipe': profile.recipe, 'nodes': [each.record() for each in predictions], 'next': tips}))
    else:
        print(to_table(profile, predictions, given, tips))
    return 0


def parse_counts(text: str) -> list[int]:
    """Parse numbers of nodes, `1,2,4`. Raises ValueError."""
    words = [word.strip() for word in text.split(',')]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise ValueError(f'--nodes {text}: expected numbers from 1 on, such as 1,2,4')
    return [int(word) for word in words]


def _measure(given: argparse.Namespace) -> Profile:
    """Profile of the recipe, measured on one device of this node."""
    if given.recipe is None:
        raise RequestError('the recipe is missing: name one to measure here, or give --profile FILE')
    job = open_with_notes(given.recipe, collect_assignments(given))
    check_parts(job, 1)
    print(f'measuring a step of {job.name} on one rank', file=sys.stderr)
    return train.measure(job, pick_device(job.recipe.device), steps=10, warmup=3)[1]


def find_tips(profile: Profile, worst: Prediction, joined: Network) -> list[str]:
    """Changes that raise the efficiency of the largest cluster by more than 1 %, with their effect."""
    tips = []

    def try_change(change: str, other: Profile) -> None:
        (better,) = plan(other, [worst.nodes], worst.devices, joined)
        if better.efficiency > worst.efficiency + 0.01:
            tips.append(f'{change}: efficiency {format_percent(worst.efficiency)} -> {format_percent(better.efficiency)}')

    if profile.norm_sync == 'global':
        try_change('norm_sync=node', replace(profile, norm_sync='node'))
    fewer = tuple(message._replace(size=message.size // 2) for message in profile.gradients)
    try_change('gradients.compression=bf16', replace(profile, gradients=fewer))
    needed = math.ceil(profile.samples / profile.computing / profile.loader_rate)
    if needed > profile.workers:
        try_change(f'train.workers={needed}', replace(profile, workers=needed))
    return tips


def to_table(profile: Profile, predictions: Sequence[Prediction], given: argparse.Namespace, tips: Sequence[str]) -> str:
    rows = [
        {
            'nodes': str(each.nodes),
            'ranks': str(each.nodes * each.devices),
            'step': f'{1000 * each.seconds:.1f} ms',
            'norms': f'{1000 * each.norms:.1f} ms',
            'gradients': f'{1000 * each.gradients:.1f} ms',
            'data': f'{1000 * each.data:.1f} ms',
            'samples/s': format_number(each.samples_per_s),
            'speed-up': f'{each.speed_up:.2f}',
            'efficiency': format_percent(each.efficiency),
            'time': format_duration(3600 * each.hours),
            'bottleneck': each.bottleneck,
        }
        for each in predictions
    ]
    head = (
        f'{profile.recipe}: a step of {profile.samples} samples takes {1000 * profile.computing:.1f} ms on one rank '
        f'({profile.device}); nodes of {given.devices_per_node}, joined by {given.bandwidth} with {given.latency}; '
        f'norm_sync {profile.norm_sync}'
    )
    note = 'norms, gradients, data: time spent waiting. speed-up: over one node. efficiency: relative to ranks that never wait.'
    return '\n'.join([head, format_text(rows), note, *(f'to try: {tip}' for tip in tips)])
