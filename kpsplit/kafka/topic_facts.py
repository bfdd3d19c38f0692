"""What is known about a topic: its partitions, replicas and settings. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition's replicas; ``leader`` is None while it has none."""

    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def in_sync(self) -> bool:
        """Return whether there is a leader and every replica is in sync."""
        return self.leader is not None and set(self.isr) == set(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. ``config`` is what is in force, ``explicit`` what was set on the topic itself."""

    name: str
    topic_id: str
    partitions: tuple[PartitionFacts, ...]
    config: dict[str, str] = field(default_factory=dict)
    explicit: dict[str, str] = field(default_factory=dict)

    @property
    def replication(self) -> int:
        """The smallest replication factor of its partitions."""
        return min((len(p.replicas) for p in self.partitions), default=0)

    @property
    def compacted(self) -> bool:
        """Return whether records are removed by key."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def min_insync(self) -> int:
        """The value of ``min.insync.replicas`` in force."""
        return int(self.config.get("min.insync.replicas", "1"))
