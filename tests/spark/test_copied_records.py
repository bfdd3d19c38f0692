"""What the verification says of records that another program copied with all their headers: real brokers."""

from __future__ import annotations

from typing import Any

import pytest

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.spark_jobs import verify
from kpsplit.spark_jobs.verification.findings import Severity
from kpsplit.spark_jobs.verification.verifier import VerifyCheck
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.data import STAMP_HEADER
from tests.broker.operating import enrolled, merge, records, split, state_of
from tests.broker.test_copied_records import copied

pytestmark = [pytest.mark.broker]

EACH = 100


def lived(operations: Admin, bootstrap: str, topic: str) -> PhysicalPartition:
    """A partition with records before its split, in its phantoms, and after its merge."""
    parent = enrolled(operations, topic)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for step in (lambda: split(operations, parent, 2), lambda: merge(operations, parent), lambda: None):
            for n in range(EACH):
                producer.produce(topic, b"v", b"key-%d" % (n % 13))
            assert producer.flush(60) == 0
            step()
    return parent


@pytest.mark.nightly
def test_copies_elsewhere_are_a_note_and_copies_in_their_own_log_are_findings(
    spark: Any, operations: Admin, bootstrap: str, make_topic: Any
) -> None:
    origin = lived(operations, bootstrap, make_topic())
    target = enrolled(operations, make_topic())
    split(operations, target, 2)
    sources = state_of(operations, origin).lineage.sources()
    raw = [m for s in sources for m in records(bootstrap, s) if dict(m.headers() or ()).get(STAMP_HEADER)]
    assert len(raw) == 3 * EACH
    copied(bootstrap, raw, target.topic)
    copied(bootstrap, raw, origin.topic)

    elsewhere = verify(spark, target.topic, {"bootstrap.servers": bootstrap})
    assert elsewhere.clean, (elsewhere.defects, elsewhere.unproven)
    (note,) = elsewhere.of(VerifyCheck.FOREIGN_RECORDS)
    assert (note.severity, note.count) == (Severity.NOTE, 3 * EACH)

    back = verify(spark, origin.topic, {"bootstrap.servers": bootstrap})
    (skipped,) = back.of(VerifyCheck.STRAYS_SENT_AGAIN)
    assert (skipped.severity, skipped.first, skipped.last, skipped.count) == (
        *(Severity.FINDING, 0, EACH - 1),
        EACH,
    )
    twice = back.of(VerifyCheck.SEQUENCES_UNIQUE, Severity.FINDING)
    assert sorted(f.count for f in twice) == [1] * EACH
    (foreign,) = back.of(VerifyCheck.FOREIGN_RECORDS)
    assert (foreign.severity, foreign.count) == (Severity.NOTE, EACH)
    assert {f.check for f in back.defects} == {
        VerifyCheck.STRAYS_SENT_AGAIN,
        VerifyCheck.SEQUENCES_UNIQUE,
        VerifyCheck.KEYS_IN_ORDER,
    }
