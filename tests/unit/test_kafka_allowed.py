"""What brokers say of our rights, by the forms of their answers."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation

from kpsplit.errors import AuthorizationError
from kpsplit.kafka.cluster_admin import allowed_on
from kpsplit.kafka.log_ends import MissingError
from kpsplit.splitter.rights import Operation


class Admin:
    """Answers for every topic as it is told."""

    def __init__(self, said: Any) -> None:
        self.client = SimpleNamespace(
            describe_topics=lambda asked, **_: {name: Future() for name in asked.topic_names}
        )
        self._said = said

    def answer(self, _future: Any, _what: str) -> Any:
        if isinstance(self._said, Exception):
            raise self._said
        return SimpleNamespace(authorized_operations=self._said)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([AclOperation.READ, AclOperation.DESCRIBE], {"orders": {Operation.READ, Operation.DESCRIBE}}),
        (None, {}),
        ([], {}),
        (MissingError("no such topic"), {}),
        (AuthorizationError("no"), {"orders": set()}),
    ],
    ids=["told", "not told", "told nothing", "no such topic", "not to be seen"],
)
def test_brokers_that_do_not_tell_refuse_nothing(said: Any, found: Any) -> None:
    admin: Any = Admin(said)
    assert allowed_on(admin, ["orders"]) == found
