"""Every key of a configuration is used, listed or an error: each value of the published files is changed, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from originals_table import DOCUMENT, MARK, WHOLE, changes, reason, tables, write_texts


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path)


@pytest.mark.parametrize('name', WHOLE)
def test_no_key_passes_silently(name: str) -> None:
    """Another value makes another recipe, a problem or another note, or the key is named in a note."""
    assert not [key for key, _, before, after in changes(name) if after == before and reason(key, after.notes) is None]


def test_the_tables_of_the_document_are_those_of_the_readers() -> None:
    assert DOCUMENT.read_text().partition(MARK)[2].strip() == tables().strip()
