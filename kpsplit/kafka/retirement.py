"""Stub."""

from __future__ import annotations
from typing import Any


class Retirement:
    def __init__(self, *a: Any) -> None: ...
    def run(self, *a: Any) -> list[str]:
        raise NotImplementedError
