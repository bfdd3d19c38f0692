"""The verbs, in the order of ``kpsplit --help``. Plain data, so that help needs no other import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: where its click command is, and its line in the help (a test compares it with the command's).

    ``changes``: the verb changes something in the cluster, so its errors say whether it did.
    """

    name: str
    module: str
    help: str
    section: str
    changes: bool = False
    attribute: str = "command"


_COMMANDS = "kpsplit.admin_cli.commands"
SET_UP, OPERATE, LOOK, TRY = "Set up", "Split and merge", "Look", "Try out"

VERBS: tuple[Verb, ...] = (
    Verb("init", f"{_COMMANDS}.init", "Create kpsplit's own topics.", SET_UP, True),
    Verb("enroll", f"{_COMMANDS}.enroll", "Make a topic's partitions splittable.", SET_UP, True),
    Verb("doctor", f"{_COMMANDS}.doctor", "Check the cluster and everything that kpsplit owns.", SET_UP),
    Verb("completion", f"{_COMMANDS}.completion", "Print a completion script for a shell.", SET_UP),
    Verb("plan", f"{_COMMANDS}.plan", "Show what a split or merge would do.", OPERATE),
    Verb(
        "split", f"{_COMMANDS}.split", "Split a partition, or one of its ranges, by key range.", OPERATE, True
    ),
    Verb(
        "merge", f"{_COMMANDS}.merge", "Merge ranges, or all of them back into the partition.", OPERATE, True
    ),
    Verb("resume", f"{_COMMANDS}.resume", "Finish what a dead operator left.", OPERATE, True),
    Verb("abort", f"{_COMMANDS}.abort", "Roll back the operation under way.", OPERATE, True),
    Verb("retire", f"{_COMMANDS}.retire", "Delete sub-topics that every group has drained.", OPERATE, True),
    Verb("seek", f"{_COMMANDS}.seek", "Move a consumer group, or one of its key ranges.", OPERATE, True),
    Verb("forget", f"{_COMMANDS}.forget", "Remove what a consumer group has committed.", OPERATE, True),
    Verb("status", f"{_COMMANDS}.status", "Show phases, ranges, log ends and writers.", LOOK),
    Verb("lineage", f"{_COMMANDS}.lineage", "Show all segments of a partition.", LOOK),
    Verb("offsets", f"{_COMMANDS}.offsets", "Show how far a consumer group has come.", LOOK),
    Verb("route", f"{_COMMANDS}.route", "Show where a key goes.", LOOK),
    Verb("acls", f"{_COMMANDS}.acls", "Print the least rights that a client of a topic needs.", LOOK),
    Verb("read", f"{_COMMANDS}.read", "Print a partition's records in lineage order.", LOOK),
    Verb(
        "verify", f"{_COMMANDS}.verify", "Prove that no record was lost, repeated or put out of order.", LOOK
    ),
    Verb(
        "cluster",
        f"{_COMMANDS}.cluster",
        "Run a Kafka cluster on this machine, without Docker.",
        TRY,
        attribute="cluster",
    ),
    Verb(
        "demo",
        "kpsplit.demo.command",
        "Split and merge under load and check every record.",
        TRY,
        attribute="demo",
    ),
)

BY_NAME = {verb.name: verb for verb in VERBS}
