"""What the group did, as a value of the demo's result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kpsplit.control.group_progress import PartitionProgress
from kpsplit.demo.group.acts import GroupActs
from kpsplit.demo.group.committed import CommitHistory, Committed
from kpsplit.demo.group.drain import Drain
from kpsplit.demo.group.judging import Excuses, GroupVerdict, judge
from kpsplit.demo.group.worked import read_worked
from kpsplit.demo.readback import ReadBack
from kpsplit.splitter.lineage import Lineage


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """``progress``: the group's range commits in the affected partition in the middle of the play."""

    verdict: GroupVerdict
    drains: tuple[Drain, ...]
    progress: PartitionProgress | None


def outcome_of(
    acts: GroupActs, back: ReadBack, lineages: Sequence[Lineage], commits: Iterable[Committed]
) -> GroupOutcome:
    """Judge what the members wrote down by what a fresh reader found, and by what was committed when."""
    journals = {name: list(read_worked(path)) for name, path in acts.members.journals().items()}
    excuses = Excuses(acts.victims(journals), CommitHistory(commits, lineages))
    verdict = judge(journals, back.offsets, lineages, excuses.excuse)
    return GroupOutcome(verdict, tuple(acts.drains.drains), acts.progress)
