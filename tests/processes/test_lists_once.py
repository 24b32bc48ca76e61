"""Lists of samples are read once per node, however many ranks, evaluations and attempts follow."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from layouts import write_recipe
from running import clean_environment, records

COUNTING = """
import os, sys
def note(event, arguments):
    if event == 'open' and str(arguments[0]).endswith(('/train.txt', '/val.txt')):
        file = os.open(os.environ['OPENED'], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, os.path.basename(arguments[0]).encode() + b'\\n')
        os.close(file)
sys.addaudithook(note)
"""
WORDS = (
    *('train', 'mine.yml', '--set', 'model.width=0.125', 'transforms.1.crop_size=[64, 64]', 'train.steps=4', 'device=cpu'),
    *('train.global_batch_size=2', 'train.workers=1', 'report.pictures=1', 'evaluate={every: 2, loss: true, batch_size: 1}'),
)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of processes that note down each list that they open."""
    monkeypatch.chdir(tmp_path)
    write_recipe('segmentation', 'pp_liteseg', 'file_list')
    Path('hook').mkdir()
    Path('hook/sitecustomize.py').write_text(COUNTING)
    return {**clean_environment(), 'PYTHONPATH': str(tmp_path / 'hook'), 'OPENED': str(tmp_path / 'opened')}


def opened() -> Counter[str]:
    return Counter(Path('opened').read_text().split())


@pytest.mark.long
def test_our_launcher_reads_for_all_ranks(counting: dict[str, str]) -> None:
    """Also for the second attempt, when one rank was killed, and for the prediction of its memory."""
    killed = "import os, signal\nif os.environ.get('RANK') == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
    killed += '    import threading; threading.Timer(0, os.kill, (os.getpid(), signal.SIGKILL)).start()\n'
    Path('hook/sitecustomize.py').write_text(COUNTING + killed)
    flags = ('--nproc_per_node', '2', '--max_restart', '1')
    done = subprocess.run(
        [sys.executable, '-m', 'phalanx', *WORDS, 'train.micro_batches=auto', *flags],
        env=counting,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(records(Path('runs/mine'), 'eval')) == 2
    assert opened() == {'train.txt': 1, 'val.txt': 1}


@pytest.mark.long
def test_the_first_rank_reads_for_the_others_of_its_node(counting: dict[str, str], tmp_path: Path) -> None:
    """Under another launcher."""
    common = {**counting, 'WORLD_SIZE': '2', 'LOCAL_WORLD_SIZE': '2', 'PHALANX_INIT_METHOD': f'file://{tmp_path}/rendezvous'}
    ranks = [
        subprocess.Popen(
            [sys.executable, '-m', 'phalanx', *WORDS], env={**common, 'RANK': rank, 'LOCAL_RANK': rank}, stderr=subprocess.PIPE
        )
        for rank in '01'
    ]
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert opened() == {'train.txt': 1, 'val.txt': 1}
