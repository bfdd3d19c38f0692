"""Questions to a group's coordinator that nobody waits for any longer, when the coordinator comes back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kpsplit.devcluster.cluster import DevCluster

pytestmark = pytest.mark.broker

# A process of its own, because librdkafka's assertion would end this one.
ASKS_ON = """
import sys
from kpsplit.errors import UnreachableError
from kpsplit.kafka import groups
from kpsplit.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection

groups.ANSWER_SECONDS = 0.3  # nobody waits for longer than that
admin, limit = ClusterAdmin(Connection({"bootstrap.servers": sys.argv[1]})), Deadline(90)


def answered():
    limit.check("the coordinator to answer")
    try:
        groups.describe_members(admin, "g", 0.3)
        groups.positions_of(admin, "g")
    except UnreachableError:
        return False
    return True


while not answered():
    pass
print("asked", flush=True)
while answered():
    pass
in_a_row = 0
while in_a_row < 20:
    in_a_row = in_a_row + 1 if answered() else 0
print("answered again", flush=True)
"""


@pytest.mark.nightly
def test_a_question_that_a_dead_coordinator_left_open_does_not_end_the_process_when_it_is_back() -> None:
    with DevCluster(brokers=1) as cluster:
        asking = subprocess.Popen(
            [sys.executable, "-c", ASKS_ON, cluster.bootstrap], stdout=subprocess.PIPE, text=True
        )
        try:
            assert asking.stdout is not None
            assert asking.stdout.readline() == "asked\n"
            cluster.kill(0)
            cluster.restart(0)
            said = asking.communicate(timeout=120)[0]
        finally:
            asking.kill()
    assert (asking.returncode, said) == (0, "answered again\n")
