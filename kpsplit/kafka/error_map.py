"""The one place where errors of the client libraries become kpsplit's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from kpsplit.errors import (
    AuthorizationError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
    UsageError,
)

RIGHTS_HINT = "ask for the right, then retry; all that are needed: kpsplit acls"
_RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "a right on a topic (Read, Write, Create, Alter or Delete)",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the right to read a group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "a right on the cluster (Alter or Describe)",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the right to write with the transactional id",
    KafkaError.SASL_AUTHENTICATION_FAILED: "valid credentials (authentication failed)",
    KafkaError._AUTHENTICATION: "valid credentials (authentication failed)",
}
COORDINATOR_REFUSES = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""It has read the question. (One that does not let a client log in has not, nor does it get heartbeats.)"""
_DESCRIBE = "Describe (Read or Write has it)"
_RIGHT_TO = (
    ("read the settings ", "DescribeConfigs"),
    ("read the end ", _DESCRIBE),
    ("read ", "Read"),
    ("look at ", _DESCRIBE),
    ("find ", _DESCRIBE),
    ("describe ", _DESCRIBE),
    ("write ", "Write"),
    ("append ", "Write"),
    ("record ", "Write"),
    ("claim ", "Write"),
    ("create ", "Create"),
    ("delete ", "Delete"),
    ("add partitions ", "Alter"),
    ("set ", "AlterConfigs"),
)
"""Which right on a topic an action needs, by how the action is worded; the first that fits."""
FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}
"""The producer's epoch is over: the brokers ended its transaction, or another has its transactional id.

What that means the owner of the id knows; of a group's membership it says nothing.
"""
_FAILED_FOR_GOOD = {KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""What a producer that failed for good says of records that it is given, and of those that it had."""
NO_MEMBER = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID, KafkaError.FENCED_MEMBER_EPOCH}
"""The group has no such member any more: what it owned is, or will be, another's."""
_BROKEN_OFF = {KafkaError._TRANSPORT, KafkaError.NETWORK_EXCEPTION}
"""The connection broke. librdkafka says so too of a request that it had sent when the broker died."""
_UNREACHABLE = _BROKEN_OFF | {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER,
}
LEADER_MOVES = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
}
"""A partition has another leader than the broker that was asked, or gets one, or one that has just begun.

A consumer passes over nothing then: it looks for the leader, and fetches from where it was.
"""
COORDINATOR_MOVES = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE}
"""A group has another coordinator than the broker that was asked, or none: it has to be looked for."""
_NO_COORDINATOR = COORDINATOR_MOVES | {KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
_TIMEOUTS = {
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
TRANSIENT_READS = LEADER_MOVES | {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
"""What a consumer without a group reports and gets over by itself: brokers that are away, leaders that move.

librdkafka looks for the coordinator of a group even where none is used; a reader need not be in one.
"""

MISSING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
"""Errors that say that there is no such topic or partition."""

_TOO_FEW_BROKERS = "there are fewer brokers than replicas: start the others, then retry"


def error_of(exception: KafkaException | KafkaError) -> KafkaError | None:
    """Return the KafkaError inside an exception of confluent-kafka.

    Lists of errors in its answers (``list_consumer_groups``) hold KafkaErrors, whatever its types say.
    """
    if isinstance(exception, KafkaError):
        return exception
    first = exception.args[0] if exception.args else None
    return first if isinstance(first, KafkaError) else None


def is_one_of(exception: BaseException, codes: Collection[int]) -> bool:
    """Return whether the client library raised an error with one of these codes."""
    error = error_of(exception) if isinstance(exception, KafkaException) else None
    return error is not None and error.code() in codes


def library_error(raised: BaseException | None) -> KafkaError | None:
    """Return the client library's error in an exception or in what caused it, None if there is none.

    A fatal error can come as a SystemError: a flush goes on to delivery reports while that exception is set.
    """
    while raised is not None and not isinstance(raised, KafkaException):
        raised = raised.__cause__
    return None if raised is None else error_of(raised)


def failed_for_good(raised: BaseException | None) -> bool:
    """Return whether an error, or its cause, says that its producer never writes again.

    After any other error it may still write, and would overtake a later try that comes from another producer.
    """
    error = library_error(raised)
    return error is not None and (error.fatal() or error.code() in _FAILED_FOR_GOOD)


def is_late(exception: BaseException) -> bool:
    """Return whether there was no answer in time, which says nothing about the next question."""
    return isinstance(exception, TimeoutError) or is_one_of(exception, _TIMEOUTS)


def translate(error: KafkaError | None, what: str, *, writing: bool = False) -> KpsplitError:
    """Return kpsplit's error for one of librdkafka's.

    ``what`` was being done, in the infinitive (``create topic orders.split-3-1``). ``writing``: a timeout
    or a broken connection means that the outcome of a write is unknown.
    """
    if error is None:
        return KpsplitError(f"could not {what}")
    code = error.code()
    text = f"could not {what}: {_reason(error)}"
    if code in _RIGHTS:
        return AuthorizationError(f"could not {what}: missing {_right(code, what)}", hint=RIGHTS_HINT)
    if code in FENCED:
        return UnreachableError(
            f"could not {what}: the transaction was ended by the brokers",
            hint="it took too long, or another client has its transactional id: retry",
        )
    if code in _TIMEOUTS | _BROKEN_OFF and writing:
        return UnknownOutcomeError(f"{text} (outcome unknown)")
    if code in _UNREACHABLE | _TIMEOUTS:
        return UnreachableError(
            f"could not {what}: the brokers cannot be reached",
            hint="check -b/--bootstrap-server, the network and the security settings",
        )
    if code in LEADER_MOVES:
        return UnreachableError(text, hint="its leader is moving to another broker: retry")
    if code in _NO_COORDINATOR:
        return UnreachableError(text, hint="it is moving to another broker: retry")
    if code == KafkaError.CONCURRENT_TRANSACTIONS:
        return UnreachableError(text, hint="the last transaction is still being ended: retry")
    if code in MISSING:
        return UsageError(f"could not {what}: no such topic or partition")
    few = code == KafkaError.INVALID_REPLICATION_FACTOR
    return KpsplitError(text, hint=_TOO_FEW_BROKERS if few else None, retriable=error.retriable())


def _reason(error: KafkaError) -> str:
    """Return the client's text; the code's own, where brokers add none ("ConsumerGroupDescribe: ")."""
    text = error.str().strip()
    return KafkaError(error.code()).str() if not text or text.endswith(":") else text


def _right(code: int, what: str) -> str:
    """Name the right that an action lacked, as exactly as the broker's answer and the action say."""
    known = next((right for action, right in _RIGHT_TO if what.startswith(action)), None)
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED and known is not None:
        return f"the right {known} there"
    return _RIGHTS[code]


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn any KafkaException inside into kpsplit's error; ``what`` as for ``translate``."""
    try:
        yield
    except KafkaException as exception:
        raise translate(error_of(exception), what) from exception
