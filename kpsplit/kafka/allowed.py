"""What the brokers say that we may do with topics (KIP-430)."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import TopicCollection

from kpsplit.errors import AuthorizationError
from kpsplit.kafka.admin_answers import ANSWER_SECONDS, MissingError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.splitter.rights import Operation

_KNOWN = {operation.name: operation for operation in Operation}


def allowed_on(admin: ClusterAdmin, topics: Collection[str]) -> dict[str, frozenset[Operation]]:
    """Return what is allowed on each topic that exists; nothing on one that we may not even see.

    A cluster without an authorizer allows everything. Topics of which the brokers do not tell are left out:
    on one that we see something is allowed.

    Raises:
        KpsplitError: no answer.
    """
    asked = TopicCollection(sorted(topics))
    futures = admin.client.describe_topics(
        asked, include_authorized_operations=True, request_timeout=ANSWER_SECONDS
    )
    found: dict[str, frozenset[Operation]] = {}
    for topic, future in futures.items():
        try:
            operations = admin.answer(future, f"describe topic {topic}").authorized_operations
        except MissingError:
            continue
        except AuthorizationError:
            found[topic] = frozenset()
            continue
        if operations:
            found[topic] = frozenset(_KNOWN[o.name] for o in operations if o.name in _KNOWN)
    return found
