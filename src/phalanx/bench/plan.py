"""Prediction of scaling: a measured step of one rank, and a model of the network between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.bench.network import Network
from phalanx.bench.profile import Message, Profile


@dataclass(frozen=True)
class Prediction:
    """A training step on `nodes` x `devices` ranks, each with the batch of the profile. Seconds of a step."""

    nodes: int
    devices: int
    computing: float
    norms: float  # waiting for the exchanges of synchronised norms
    losses: float  # waiting for those of losses and numbers
    gradients: float  # waiting for gradients after the backward pass
    host: float  # the processor copies and adds instead of computing
    data: float  # waiting for samples
    samples_per_s: float
    hours: float  # of the whole run
    speed_up: float  # over one node
    efficiency: float  # of what as many ranks would do that never wait

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting

    @property
    def waiting(self) -> float:
        return self.norms + self.losses + self.gradients + self.host + self.data

    @property
    def bottleneck(self) -> str:
        """Largest cause of waiting; `computing` if ranks wait for less than 2 % of a step."""
        waits = {
            'synchronised norms': self.norms,
            'losses': self.losses,
            'gradients': self.gradients,
            'copies by the processor': self.host,
            'data': self.data,
        }
        worst = max(waits, key=lambda name: waits[name])
        return worst if self.waiting > 0.02 * self.seconds else 'computing'

    def record(self) -> dict[str, Any]:
        return {**asdict(self), 'seconds': self.seconds, 'bottleneck': self.bottleneck}


def plan(profile: Profile, nodes: Sequence[int], devices: int, network: Network) -> list[Prediction]:
    """A prediction for each number of nodes with `devices` ranks each."""
    base, predictions = simulate(profile, 1, devices, network), []
    for count in nodes:
        step = simulate(profile, count, devices, network)
        rate = count * devices * profile.samples / step.now
        prediction = Prediction(
            nodes=count,
            devices=devices,
            computing=profile.computing,
            **step.waited,
            samples_per_s=rate,
            hours=profile.run_samples / rate / 3600,
            speed_up=count * base.now / step.now,
            efficiency=profile.computing / step.now,
        )
        predictions.append(prediction)
    return predictions


class _Rank:
    """The clock of one rank, and until when the network is busy with gradients: one bucket after the other.

    The few bytes that a rank waits for have a communicator of their own, and overtake them.
    """

    def __init__(self, network: Network, nodes: int, devices: int) -> None:
        self.network, self.nodes, self.devices = network, nodes, devices
        self.now = self.busy = 0.0
        self.waited = dict.fromkeys(('data', 'norms', 'losses', 'gradients', 'host'), 0.0)

    def go_through(self, messages: Sequence[tuple[Message, str]], seconds: float, reach: Mapping[str, int]) -> None:
        """Advance through a pass of `seconds` that sends messages; `reach`: nodes of an exchange, by reason."""
        passed = 0.0
        for message, reason in sorted(messages):
            self.now += message.at - passed
            passed = message.at
            self.send(message.size, reason, reach[reason])
        self.now += seconds - passed

    def send(self, size: int, reason: str, nodes: int) -> None:
        """Hands `size` bytes over, to be added up over `nodes` nodes; unless they are gradients, the rank waits for the sum."""
        if nodes * self.devices == 1:
            return
        copying = size / self.network.host
        self.now += copying
        self.waited['host'] += copying
        under_way = self.network.all_reduce(size, nodes, self.devices)
        if reason == 'gradients':
            self.busy = max(self.now, self.busy) + under_way
        else:
            self.wait(reason, self.now + under_way)

    def wait(self, reason: str, until: float) -> None:
        self.waited[reason] += max(0.0, until - self.now)
        self.now = max(self.now, until)


def simulate(profile: Profile, nodes: int, devices: int, network: Network) -> _Rank:
    """One step: the passes with their exchanges, gradients travelling meanwhile, the update, and waiting for data."""
    rank, seconds = _Rank(network, nodes, devices), profile.phases
    reach = {'norms': nodes if profile.norm_sync == 'global' else 1, 'losses': nodes, 'gradients': nodes}
    forward = [*((message, 'norms') for message in profile.forward), *((message, 'losses') for message in profile.losses)]
    rank.go_through(forward, seconds.get('forward', 0) + seconds.get('loss', 0), reach)
    backward = [*((message, 'norms') for message in profile.backward), *((bucket, 'gradients') for bucket in profile.buckets())]
    rank.go_through(backward, seconds.get('backward', 0), reach)
    rank.wait('gradients', rank.busy)
    rank.now += sum(seconds.get(phase, 0) for phase in ('host to device', 'communication', 'optimizer', 'other'))
    loading = profile.samples / (profile.loader_rate * max(profile.workers, 1))
    # Workers load while the rank computes; without any it does that itself.
    rank.waited['data'] = loading if profile.workers == 0 else max(0.0, loading - rank.now)
    rank.now += rank.waited['data']
    return rank
