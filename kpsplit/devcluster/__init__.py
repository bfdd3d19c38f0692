"""A real Kafka on this machine, for tests, demonstrations and trying things out.

KRaft nodes, each broker and controller at once, run as child processes on loopback. They end when the
process that started them ends, however it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpsplit.lazy import lazy_names

if TYPE_CHECKING:
    from kpsplit.devcluster.cluster import DevCluster

__all__ = ["DevCluster"]

__getattr__ = lazy_names(__name__, {"DevCluster": "kpsplit.devcluster.cluster"})
