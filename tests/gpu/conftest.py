"""Tests that need a CUDA device; elsewhere each is skipped, and says so."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if 'gpu' in item.path.parts:
            item.add_marker(pytest.mark.skip(reason='needs a CUDA device, and there is none here'))
