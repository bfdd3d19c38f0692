"""Fixtures that several files of broker tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kpsplit.admin import Admin
from tests.broker.operating import operating


@pytest.fixture(scope="module")
def operations(bootstrap: str) -> Iterator[Admin]:
    """Operations on the session's cluster, one façade for each file."""
    with operating(bootstrap) as running:
        yield running
