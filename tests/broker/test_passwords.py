"""Passwords that change while clients are connected."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kpsplit import Consumer, Producer
from kpsplit.admin import Admin
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import UnreachableError
from kpsplit.kafka.connection import Connection
from tests.broker.consuming import wait_for
from tests.broker.guarded import ADMIN, Guarded, await_login, password_of, set_passwords
from tests.broker.guarded_topic import PARENT, TOPIC, consumer, guarded_topic, read_all, send
from tests.broker.operating import PAUSE_MS

pytestmark = [pytest.mark.broker, pytest.mark.nightly]


@pytest.fixture
def guarded(kafka_runtime: KafkaRuntime, tmp_path: Path) -> Iterator[Guarded]:
    """A cluster of the test's own: it is restarted."""
    with guarded_topic(tmp_path) as guarded:
        yield guarded


ROTATED = ("operator", "producer", "consumer")


@contextmanager
def other_passwords(guarded: Guarded) -> Iterator[Callable[[], dict[str, str]]]:
    """Yield what gives the users other passwords, until the end of the block, and returns them."""
    admin = AdminClient(guarded.client(ADMIN))

    def change(passwords: dict[str, str]) -> dict[str, str]:
        set_passwords(admin, passwords)
        for user, password in passwords.items():
            await_login({**guarded.client(user), "sasl.password": password})
        return passwords

    try:
        yield lambda: change({user: f"rotated-{user}" for user in ROTATED})
    finally:
        change({user: password_of(user) for user in ROTATED})


def commits(member: Consumer) -> bool:
    """Try to commit. librdkafka loses requests of a transaction when its broker goes away: then once more.

    That finds nothing left to commit where the automatic commit came first.
    """
    try:
        member.commit(asynchronous=False)
    except KafkaException as exception:
        code = exception.args[0].code()
        assert code in (KafkaError._TIMED_OUT, KafkaError._NO_OFFSET)
        return code == KafkaError._NO_OFFSET
    return True


def has_leaders(operations: Admin) -> bool:
    """Tell whether kpsplit's topics can be read: the broker leads one topic before another when it starts."""
    try:
        operations.view()
    except UnreachableError:
        return False
    return True


def test_every_client_logs_in_with_a_password_that_was_changed_while_it_ran(guarded: Guarded) -> None:
    """The broker is restarted, so that each has to log in again, and tells of those that it refused."""
    operator, broker = Connection(guarded.client("operator")), guarded.cluster.brokers[0]
    with (
        other_passwords(guarded) as change_passwords,
        Admin(operator) as operations,
        Producer(guarded.client("producer")) as producer,
        consumer(guarded) as member,
    ):
        member.subscribe([TOPIC])
        send(producer, "old password")
        operations.run(operations.plan_merge(PARENT), max_pause_ms=PAUSE_MS, force=True)
        read_all(member, ["old password"])
        member.commit(asynchronous=False)
        passwords = change_passwords()
        for client, user in ((operator, "operator"), (producer, "producer"), (member, "consumer")):
            client.set_sasl_credentials(user, passwords[user])
        gc.collect()  # clients of earlier tests would try the old password for ever
        broker.kill()
        told = broker.log.stat().st_size
        broker.restart()
        send(producer, "new password")
        wait_for(lambda: has_leaders(operations), "the only broker to lead kpsplit's topics again")
        operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
        send(producer, "new password, new layout")
        read_all(member, ["new password", "new password, new layout"])
        wait_for(lambda: commits(member), "a commit")
        lines = broker.log.read_bytes()[told:].decode(errors="replace").splitlines()
        assert not [line for line in lines if "Failed authentication" in line]
