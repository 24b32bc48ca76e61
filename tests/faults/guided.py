"""Inputs for one reader, led by which lines of Phalanx and PyYAML they reach: `python -m faults.guided npz --inputs 100000`.

With `PYTHONPATH=tests`, and atheris (`pip install atheris`; for Linux on x86). It ends at the first unexpected answer, whose
input is kept as `crash-...` in the current folder.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=['phalanx.config', 'phalanx.data', 'phalanx.weights', 'yaml']):
    from faults.fuzz import OWN, readers


def main() -> None:
    parser = argparse.ArgumentParser('faults.guided', description=__doc__)
    parser.add_argument('reader')
    parser.add_argument('--inputs', type=int, default=100_000)
    parser.add_argument('--seed', type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter('ignore')
    folder = Path(tempfile.mkdtemp(prefix='guided-'))  # libFuzzer leaves the process itself: nothing can be removed at the end
    reader = readers(folder)[given.reader]
    corpus = folder / 'corpus'
    corpus.mkdir()
    for number, example in enumerate(reader.examples):
        (corpus / str(number)).write_bytes(example)

    def one_input(data: bytes) -> None:
        (folder / reader.file).write_bytes(data)
        try:
            reader.read(folder / reader.file)
        except OWN as error:
            if str(folder) not in str(error):
                raise AssertionError('an error without the name of the file') from error

    limits = (f'-runs={given.inputs}', f'-seed={given.seed}', '-timeout=10', '-rss_limit_mb=4096', '-max_len=8192')
    atheris.Setup(['guided', *limits, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == '__main__':
    main()
