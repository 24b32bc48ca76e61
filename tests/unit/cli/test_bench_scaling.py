"""The scaling table from runs that are given, the files around it, the input pipeline, and requests that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.bench.comm import Exchange
from phalanx.bench.data import PipelineFigures
from phalanx.bench.scaling import Comparison, Nodes, TrainingRun, compare, table, write
from phalanx.bench.show import format_markdown, format_text
from phalanx.cli.bench import command
from phalanx.cli.plan import command as plan_command
from phalanx.system.errors import RequestError

# Two repeats of one and of four ranks. One rank takes 100 s (the median of 90 and 110), four take 30 s (28 and 32).
RUNS = [
    TrainingRun(1, 1000, 16, 90.0, 11.0, 500.0, 0.80, [(1, 2.0), (2, 1.0)], [(2, 0.80)]),
    TrainingRun(4, 1000, 16, 28.0, 36.0, 300.0, 0.79, [(1, 2.0), (2, 1.1)], [(2, 0.79)]),
    TrainingRun(1, 1000, 16, 110.0, 9.0, 520.0, 0.82),
    TrainingRun(4, 1000, 16, 32.0, 30.0, 310.0, 0.80),
]
FACTS = {'recipe': 'toy', 'model': '<unet>'}


def test_a_world_is_compared_with_the_smallest_by_its_times() -> None:
    one, four = compare(RUNS)
    assert (one['world'], one['speed_up'], one['efficiency'], one['metric_change']) == (1, 1.0, 1.0, 0.0)
    assert four['speed_up'] == pytest.approx(100 / 30)
    assert four['efficiency'] == pytest.approx(100 / 30 / 4)
    assert four['metric_change'] == pytest.approx(0.795 - 0.81)
    assert (one['samples_per_s'], four['samples_per_s']) == (10.0, 33.0)
    assert one['spread'] == pytest.approx(0.2)
    assert four['memory_mb'] == 310.0


def test_a_comparison_may_begin_with_several_ranks() -> None:
    (two, four) = compare([TrainingRun(2, 10, 1, 60.0, 1.0, 1.0), TrainingRun(4, 10, 1, 40.0, 1.0, 1.0)])
    assert two['efficiency'] == 1
    assert four['efficiency'] == pytest.approx(60 / 40 / 2)


def test_short_runs_have_no_accuracy() -> None:
    (row,) = table(compare([TrainingRun(1, 10, 1, 60.0, 1.0, 1.0)]), 'mean_iou')
    assert 'mean_iou' not in row


def test_the_same_table_as_text_markdown_json_and_page(tmp_path: Path) -> None:
    write(tmp_path, FACTS, 'mean_iou', RUNS)
    output = json.loads((tmp_path / 'scaling.json').read_text())
    assert [world['world'] for world in output['worlds']] == [1, 4]
    for name in ('scaling.txt', 'scaling.md', 'scaling.html'):
        assert '3.33' in (tmp_path / name).read_text(), name
    page = (tmp_path / 'scaling.html').read_text()
    assert '<unet>' not in page and '&lt;unet&gt;' in page
    assert 'http' not in page.replace('http-equiv', '') and '<script' not in page


def test_a_run_is_read_without_its_first_log_line(tmp_path: Path) -> None:
    """Lines at steps 5, 10, 20 with 1, 10 and 20 samples/s: 5 steps of 4 samples in 2 s, 10 in 2 s: 60 samples in 4 s."""
    lines = [
        {'kind': 'train', 'step': s, 'loss': 1.0, 'terms': {}, 'samples_per_s': r} for s, r in ((5, 1), (10, 10), (20, 20))
    ]
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    summary = {'global_batch_size': 4, 'main_metric': 'iou', 'seconds': 77.0, 'peak_memory_mb': 5.0, 'metrics': {}}
    (tmp_path / 'summary.json').write_text(json.dumps(summary))
    short = TrainingRun.read(tmp_path, 2, total_steps=300, full=False)
    assert short.samples_per_s == pytest.approx(15)
    assert short.seconds == pytest.approx(300 * 4 / 15)
    assert TrainingRun.read(tmp_path, 2, total_steps=300, full=True).seconds == 77.0
    (tmp_path / 'metrics.jsonl').write_text(json.dumps(lines[0]) + '\n')  # a training that ends before its second log line
    assert TrainingRun.read(tmp_path, 2, total_steps=300, full=True).samples_per_s == 1


NODES = Nodes(3, 1, ('10.0.0.1', '10.0.0.2', '10.0.0.3'), 2, 6170, 300.0)


def test_ranks_fill_one_node_after_the_other() -> None:
    taken = {world: NODES.of(world) for world in (1, 2, 4, 6)}
    assert taken == {1: 1, 2: 1, 4: 2, 6: 3}


@pytest.mark.parametrize('world', [3, 8])
def test_ranks_that_do_not_fill_their_nodes_are_refused(world: int) -> None:
    with pytest.raises(ValueError, match='3 nodes of 2 ranks'):
        NODES.of(world)


def test_all_nodes_join_the_first_run_and_no_run_finds_the_port_of_another() -> None:
    comparison = Comparison('toy', (), [1, 2, 6], 5, 2, 1, Path(), NODES)
    runs = [world for _, world in comparison.runs()]
    assert runs == [6, 2, 1, 6, 2, 1]
    flags = [NODES.flags(world, number) for number, world in enumerate(runs)]
    first = ['--ips', '10.0.0.1,10.0.0.2,10.0.0.3', '--start_port', '6170', '--nproc_per_node', '2']
    assert flags[0] == [*first, '--join_timeout', '300.0']
    assert flags[2] == ['--nproc_per_node', '1']
    assert flags[3][:4] == [*first[:3], '6173']


def test_nodes_of_a_scheduler_meet_at_the_first_at_a_port_of_each_run() -> None:
    nodes = Nodes(3, 1, ('head',), 2, 29500, 300.0)
    flags = nodes.flags(4, 2)
    assert flags[:8] == ['--nnodes', '2', '--master', 'head:29502', '--rank', '1', '--nproc_per_node', '2']
    assert nodes.described == '3, the first is head'


def test_tables_are_aligned() -> None:
    rows = [{'a': 'long', 'b': '1'}, {'a': 'x', 'b': '22'}]
    assert format_text(rows) == 'a      b\nlong   1\nx     22'
    assert format_markdown(rows) == '| a | b |\n| --- | ---: |\n| long | 1 |\n| x | 22 |'


def test_bus_bandwidth_is_the_traffic_on_the_busiest_link_of_a_ring() -> None:
    """4 ranks: each link carries 6/4 of the result."""
    assert Exchange(8_000_000, 0.1).bus_bandwidth(4) == pytest.approx(120e6)


def test_cores_are_whole() -> None:
    """4 ms per sample are 250 samples/s per core: 600 need three."""
    figures = PipelineFigures('toy', 10, {'reading': 0.003, 'RandomFlip': 0.001})
    assert figures.rate == pytest.approx(250)
    assert figures.cores_for(600) == 3


def test_the_pipeline_is_reported_by_transform(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ['data.train_scenes=4', 'data.eval_scenes=1', 'data.size=[32,32]', 'data.digit_height=[10,20]']
    words = ['data', 'pp_liteseg_digits', '--set', *tiny, 'transforms=[random_flip]', 'train.global_batch_size=2']
    assert command([*words, '--samples', '3', '--rate', '10', '--json']) == 0
    output = json.loads(capsys.readouterr().out)
    assert output['samples'] == 4  # whole batches
    assert set(output['parts']) == {'reading', 'RandomFlip', 'collate', 'all else'}
    assert output['cores_for_one_device'] >= 1


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['train', 'pp_liteseg_digits', '--precision', 'fp8'], 'fp32, bf16, fp16'),
        (['train', 'pp_liteseg_digits', '--steps', '0'], 'at least 1'),
        (['train', 'pp_liteseg_digits', '--precision', 'fp32,bf16', '--profile', 'x'], 'one variant'),
        (['data', 'pp_liteseg_digits', '--samples', '0'], 'at least 1'),
        (['comm'], '--nproc_per_node'),
        (['scaling', 'pp_liteseg_digits', '--world', 'two'], 'such as 1,2,4'),
        (['scaling', 'pp_liteseg_digits', '--nproc_per_node', '2'], '--world gives the numbers of ranks'),
    ],
)
def test_a_wrong_request_is_reported_with_the_fix(words: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        command(words)


def test_a_plan_needs_a_recipe_or_a_profile() -> None:
    with pytest.raises(RequestError, match='--profile'):
        plan_command([])
