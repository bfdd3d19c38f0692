"""What a Producer reports about its records: statistics while it runs, certificates at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from kpsplit.producer.locks import holds_lock, refuse_reentry
from kpsplit.producer.send_state import SendCounts
from kpsplit.producer.state import ProducerState, SendState
from kpsplit.splitter.records.data import instance_name
from kpsplit.splitter.records.producers import Certificate


@dataclass(slots=True, kw_only=True)
class PartitionStats(SendCounts):
    """One enrolled logical partition, as this producer sees it. Counts are of records since the start.

    ``fences``: how many fences it has seen; ``held``: how many records had to wait for a segment to open;
    ``strays``: how many went astray and were sent again; ``next_sequence``: how many were accepted;
    ``waiting``: how many wait now; ``pending``: acknowledged and not final yet; ``delivered``: reported as
    delivered, per segment id; ``failed``: reported as failed.
    """

    epoch: int
    segments: int
    next_sequence: int
    waiting: int
    pending: int
    delivered: dict[int, int]
    failed: int


@dataclass(frozen=True, slots=True)
class LayoutStats:
    """A producer's statistics. ``pauses_ms``: the length of each pause so far, in milliseconds."""

    instance: str
    lease_valid: bool
    partitions: dict[str, PartitionStats]
    pauses_ms: tuple[int, ...]
    last_error: str | None

    @property
    def strays(self) -> int:
        """How many records went astray and were sent again."""
        return sum(p.strays for p in self.partitions.values())

    @property
    def held(self) -> int:
        """How many records had to wait for a segment to open."""
        return sum(p.held for p in self.partitions.values())


@holds_lock
def layout_stats(
    state: ProducerState, pauses_ms: Sequence[int] = (), last_error: str | None = None
) -> LayoutStats:
    """Return what a producer knows about layouts, fences, held records and strays.

    Raises:
        KpsplitError: called by a signal handler in the middle of another call.
    """
    refuse_reentry(state.lock)
    with state.lock:
        partitions = {str(f.state.parent): _partition_stats(f) for f in state.send_states()}
        valid = state.lease_valid()
    return LayoutStats(instance_name(state.instance), valid, partitions, tuple(pauses_ms), last_error)


@holds_lock
def certificates(state: ProducerState) -> dict[str, Certificate]:
    """Return what was delivered and what failed, per partition to which anything was sent.

    Three kinds of partitions get no certificate. One where a number neither was delivered nor failed (its
    report was lost, or has not come): a verification would take it for a lost record. One whose topic was
    made again meanwhile: some of the numbers lie in the topic that is gone. One where too many records failed
    to list their numbers.
    """
    with state.lock:
        found = {str(f.state.parent): _certificate(f) for f in state.send_states() if _speaks_of_one_topic(f)}
    return {parent: certificate for parent, certificate in found.items() if _complete(certificate)}


def _certificate(send_state: SendState) -> Certificate:
    delivered = {str(segment): count for segment, count in send_state.delivered().items()}
    failed = tuple(send_state.statistics.failed.numbers() or ())
    return Certificate(send_state.next_sequence, delivered, failed, send_state.topic_id)


def _speaks_of_one_topic(send_state: SendState) -> bool:
    return send_state.next_sequence > 0 and send_state.state.topic_id == send_state.topic_id


def _complete(certificate: Certificate) -> bool:
    return sum(certificate.delivered.values()) + len(certificate.failed) == certificate.next_sequence


def _partition_stats(send_state: SendState) -> PartitionStats:
    return PartitionStats(
        epoch=send_state.state.epoch,
        segments=len(send_state.writers),
        next_sequence=send_state.next_sequence,
        waiting=send_state.waiting(),
        pending=send_state.pending(),
        delivered=send_state.delivered(),
        failed=send_state.statistics.failed.count,
        **{count.name: getattr(send_state.statistics, count.name) for count in fields(SendCounts)},
    )
