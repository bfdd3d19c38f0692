"""Whether librdkafka refused a record, or has it and a signal handler raised behind its produce()."""

from __future__ import annotations

import signal
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from confluent_kafka import KafkaException

from kpsplit.errors import KpsplitError

REFUSALS = (
    BufferError, KafkaException, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError,
)  # fmt: skip
"""What librdkafka's produce() raises. Anything else is a signal handler's; of these, ask ``is_refusal``."""
_NAME_IS_NO_TEXT = "expected header key to be unicode string"


def is_refusal(error: BaseException) -> bool:
    """Tell whether librdkafka raised it; for the frame that called its produce(), by whatever wrappers."""
    below = error.__traceback__ and error.__traceback__.tb_next
    if below is None:  # no Python between that frame and what was raised
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    while below is not None:
        if below.tb_frame.f_code in handlers:
            return False
        below = below.tb_next
    return True


def raise_swallowed(error: BaseException) -> None:
    """Raise what a signal handler raised while librdkafka's produce() looked at our own header's name.

    That runs handlers, and tells what they raise as a name that is no text, which ours always is. So it is
    only asked where the application gave no headers. The record was not taken.

    Raises:
        KeyboardInterrupt: it can only have been Ctrl-C. KpsplitError: there are other handlers.
    """
    if not isinstance(error, TypeError) or str(error) != _NAME_IS_NO_TEXT:
        return
    handlers = [h for n in signal.valid_signals() if callable(h := signal.getsignal(n))]
    if handlers == [signal.default_int_handler]:
        raise KeyboardInterrupt from None
    raise KpsplitError(
        "a signal handler raised in the middle of produce(), and the client library lost what it raised; "
        "the record was not accepted",
        hint="let the handler set a flag as well, and look at it",
    ) from error


def _code_of(handler: Any) -> CodeType | None:
    """Return the code that a signal handler runs first."""
    while isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not isinstance(handler, FunctionType | MethodType):
        handler = type(handler).__call__
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
