"""Header names of any bytes, for kafka-python's producer; brokers do not look at them."""

from __future__ import annotations


class RawName(str):
    """A header name of any bytes, as kafka-python writes it."""

    __slots__ = ("raw",)

    def __new__(cls, raw: bytes) -> RawName:
        name = super().__new__(cls, "raw")
        name.raw = raw
        return name

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.raw
