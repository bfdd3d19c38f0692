"""Stub."""

from __future__ import annotations
from typing import Any


class Doctor:
    def __init__(self, *a: Any) -> None: ...
    def checks(self) -> list[Any]:
        raise NotImplementedError
