"""Plans of splits and merges: what would be done, what it is predicted to do, which checks hold.

A plan is a value: it can be shown, saved to a file, and run later as long as the partition still is at the
epoch that it was made for. It names no sub-topic number that must hold: that is chosen anew when it is run.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from kpsplit.errors import RecordError
from kpsplit.splitter.key_range import KeyRange, is_row
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, OperationKind, Target
from kpsplit.splitter.records.keys import is_topic_name, place_field
from kpsplit.splitter.records.strict_json import Fields, decode, encode_readable

VERSION = 1
LONGEST_LABEL = 200
_LONGEST_MESSAGE = 2000
_PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One named check: its answer, what was found, and what to do about it.

    ``forceable``: a failed check that ``--force`` passes over; the others are never passed over.
    """

    name: str
    ok: bool
    message: str
    remedy: str = ""
    forceable: bool = False


@dataclass(frozen=True, slots=True)
class HotKey:
    """A heavy key of the sample: its hash, its share of the load (0..1), the key as printable text."""

    key_hash: int
    share: float
    label: str


@dataclass(frozen=True, slots=True)
class Drain:
    """What one group has before it. ``seconds``: about how long that takes; None: it was not seen to move."""

    group: str
    left: int
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time whose records were all looked at, in ms since 1970; ``since_ms`` None: from the earliest on.

    ``until_ms``: when looking began; what came during it may be in it as well.
    """

    since_ms: int | None
    until_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One operation, planned. ``shares`` are parts of the load, to six digits; None: nothing was sampled.

    ``drains``: what groups have to read before they go on with what a merge opens, the slowest first.
    ``stretch``: what the shares were found in; None: in a sample of the newest records.
    """

    parent: PhysicalPartition
    kind: OperationKind
    epoch: int
    topic_id: str
    sources: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    target: Target
    subtopic: str | None
    shares: tuple[float, ...] | None
    heaviest: tuple[HotKey, ...]
    sampled: int
    useful: bool
    note: str
    checks: tuple[Check, ...]
    made_ms: int
    drains: tuple[Drain, ...] = ()
    stretch: Stretch | None = None

    def problems(self, force: bool = False) -> tuple[Check, ...]:
        """Return the failed checks that forbid running the plan."""
        return tuple(c for c in self.checks if not c.ok and not (force and c.forceable))

    def attempt(self, operator: str, max_pause_ms: int) -> Attempt:
        """Return a new attempt, with an id of its own, at what is planned."""
        return Attempt(
            id=new_attempt_id(),
            kind=self.kind,
            operator=operator,
            started_ms=wall_ms(),
            sources=self.sources,
            ranges=self.ranges,
            target=self.target,
            subtopic=self.subtopic,
            max_pause_ms=max_pause_ms,
        )

    def encode(self) -> bytes:
        """Return the content of a plan file."""
        return encode_readable(_to_json(self), Plan.decode)

    @classmethod
    def decode(cls, data: bytes) -> Plan:
        """Read a plan file.

        Raises:
            RecordError: it is none. FutureVersionError: a newer kpsplit wrote it.
        """
        fields = decode(data, "plan", VERSION)
        plan = cls(
            parent=place_field(fields),
            kind=fields.choice("kind", OperationKind),
            epoch=fields.integer("epoch", 0, 0xFFFFFFFF),
            topic_id=fields.text("topic_id", 100),
            sources=fields.integers("sources"),
            ranges=fields.objects("ranges", _range),
            target=fields.choice("target", Target),
            subtopic=fields.optional_text("subtopic", 249),
            shares=fields.optional_object("shares", _shares),
            heaviest=fields.objects("heaviest", _hot_key),
            sampled=fields.integer("sampled"),
            useful=fields.boolean("useful"),
            note=fields.text("note", _LONGEST_MESSAGE),
            checks=fields.objects("checks", _check),
            made_ms=fields.integer("made_ms"),
            drains=fields.objects("drains", _drain),
            stretch=fields.optional_object("stretch", _stretch),
        )
        fields.done()
        _check_shape(plan)
        return plan


def new_attempt_id() -> str:
    """Return an id that no other attempt has."""
    return uuid.uuid4().hex


def wall_ms() -> int:
    """Return the wall clock in milliseconds: for people, no decision depends on it."""
    return time.time_ns() // 1_000_000


def shortened(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Return a text that fits a field of a plan."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _to_json(plan: Plan) -> dict[str, Any]:
    return {
        "v": VERSION,
        "topic": plan.parent.topic,
        "partition": plan.parent.partition,
        "kind": plan.kind.value,
        "epoch": plan.epoch,
        "topic_id": plan.topic_id,
        "sources": list(plan.sources),
        "ranges": [{"lo": r.lo, "hi": r.hi} for r in plan.ranges],
        "target": plan.target.value,
        "subtopic": plan.subtopic,
        "shares": None if plan.shares is None else {"ppm": [round(s * _PPM) for s in plan.shares]},
        "heaviest": [
            {"key_hash": k.key_hash, "share_ppm": round(k.share * _PPM), "label": k.label}
            for k in plan.heaviest
        ],
        "sampled": plan.sampled,
        "useful": plan.useful,
        "note": shortened(plan.note),
        "checks": [
            {
                "name": c.name,
                "ok": c.ok,
                "message": shortened(c.message),
                "remedy": shortened(c.remedy),
                "forceable": c.forceable,
            }
            for c in plan.checks
        ],
        "made_ms": plan.made_ms,
        "drains": [{"group": d.group, "left": d.left, "seconds": d.seconds} for d in plan.drains],
        "stretch": plan.stretch and {"since_ms": plan.stretch.since_ms, "until_ms": plan.stretch.until_ms},
    }


def _stretch(fields: Fields) -> Stretch:
    return Stretch(fields.optional_integer("since_ms"), fields.integer("until_ms"))


def _range(fields: Fields) -> KeyRange:
    lo, hi = fields.integer("lo"), fields.integer("hi")
    return fields.guard(lambda: KeyRange(lo, hi))


def _shares(fields: Fields) -> tuple[float, ...]:
    shares = fields.integers("ppm")
    if any(ppm > _PPM for ppm in shares):
        fields.fail("a share is over 1")
    return tuple(ppm / _PPM for ppm in shares)


def _hot_key(fields: Fields) -> HotKey:
    return HotKey(
        fields.integer("key_hash", 0, 0xFFFFFFFF),
        fields.integer("share_ppm", 0, _PPM) / _PPM,
        fields.text("label", LONGEST_LABEL),
    )


def _check(fields: Fields) -> Check:
    return Check(
        fields.text("name"),
        fields.boolean("ok"),
        fields.text("message", _LONGEST_MESSAGE),
        fields.text("remedy", _LONGEST_MESSAGE),
        fields.boolean("forceable"),
    )


def _drain(fields: Fields) -> Drain:
    return Drain(
        fields.text("group", _LONGEST_MESSAGE), fields.integer("left"), fields.optional_integer("seconds")
    )


def _check_shape(plan: Plan) -> None:
    if not plan.sources or not plan.ranges:
        raise RecordError("plan: no sources or no ranges")
    if len(set(plan.sources)) != len(plan.sources) or not is_row(plan.ranges):
        raise RecordError("plan: sources that stand twice, or ranges that do not follow each other")
    if plan.subtopic is not None and not is_topic_name(plan.subtopic):
        raise RecordError("plan: subtopic is not a topic's name")
    if plan.shares is not None and len(plan.shares) != len(plan.ranges):
        raise RecordError("plan: as many shares as ranges are needed")
