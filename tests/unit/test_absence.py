"""Most brokers, each asked by itself, decide whether a topic is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.kafka import cluster_admin
from kpsplit.kafka.cluster_admin import most_brokers_lack


class Cluster:
    """Brokers by what they say of the topic; None: no answer. Stands for the connection."""

    def __init__(self, *answers: bool | None) -> None:
        self.answers = answers

    def shared_admin(self) -> Any:
        brokers = {n: SimpleNamespace(host="broker", port=n) for n in range(len(self.answers))}
        return SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(brokers=brokers))

    def open_admin(self, _role: str, **settings: Any) -> int:
        assert settings["enable_sparse_connections"] is True
        return int(settings["bootstrap_servers"].removeprefix("broker:"))


@pytest.mark.parametrize(
    ("answers", "gone"),
    [
        ((False, False, False), True),
        ((False, False, None), True),
        ((False, None, None), False),
        ((False, False, True), False),
        ((None, None, None), False),
        ((False, None), False),
        ((False,), True),
    ],
)
def test_a_topic_is_gone_when_most_brokers_do_not_know_it_and_none_does(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[bool | None, ...], gone: bool
) -> None:
    monkeypatch.setattr(cluster_admin, "exists", lambda one, _topic: answers[one])
    assert most_brokers_lack(Cluster(*answers), "orders.split-3-1") is gone  # type: ignore[arg-type]
