"""4,412 mutated inputs, 200 per reader and 12 for run folders; `make fuzz` tries a million."""

from __future__ import annotations

import warnings
from pathlib import Path

from faults.fuzz import readers, tried

INPUTS, OF_PAGES = 200, 12  # for each reader; a run folder becomes a page with its plots, which takes as long as 100 others


def test_a_reader_gives_a_result_or_its_own_error(tmp_path: Path) -> None:
    for name, reader in readers(tmp_path).items():
        whole = (tmp_path / reader.file).read_bytes() if (tmp_path / reader.file).exists() else None
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            inputs = OF_PAGES if name == 'run folders' else INPUTS
            assert tried(name, reader, tmp_path, inputs, seed=0) == {}, name
        if whole is not None:
            (tmp_path / reader.file).write_bytes(whole)


def test_readers_read_the_inputs_that_are_mutated(tmp_path: Path) -> None:
    """Otherwise all mutations would be refused for the same reason."""
    for name, reader in readers(tmp_path).items():
        if name in (
            'manifests',
            'VOC lists',
            '--set',
            'ONNX',
        ):  # the first of an older format, the last of another network; of the others, parts are wrong on purpose
            continue
        for example in reader.examples:
            whole = (tmp_path / reader.file).read_bytes() if (tmp_path / reader.file).exists() else None
            (tmp_path / reader.file).write_bytes(example)
            reader.read(tmp_path / reader.file)  # raises nothing
            if whole is not None:
                (tmp_path / reader.file).write_bytes(whole)
