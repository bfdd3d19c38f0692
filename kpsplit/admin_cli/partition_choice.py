"""Which logical partition a key belongs to, chosen as the topic's applications choose it."""

from __future__ import annotations

from kpsplit.errors import UsageError
from kpsplit.splitter.records.control import Partitioner


def partition_of(key: bytes, partitioner: Partitioner, partitions: int) -> int:
    """Return the partition of a key.

    Raises:
        UsageError: the key alone does not determine it.
    """
    import confluent_kafka

    if partitioner is Partitioner.EXPLICIT:
        raise UsageError(
            "the applications of this topic name the partition of every record",
            hint="name the partition with --partition",
        )
    if partitioner is Partitioner.MURMUR2_RANDOM:
        return int(confluent_kafka.murmur2(key, partitions))
    if not key:
        raise UsageError(
            "consistent_random sends empty keys to any partition", hint="name the partition with --partition"
        )
    return int(confluent_kafka.consistent(key, partitions))
