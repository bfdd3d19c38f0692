"""For tests of applications that use kpsplit, and of kpsplit itself."""

from kpsplit.testing.history import (
    Anomaly,
    Delivery,
    Finding,
    HistoryChecker,
    HistoryReport,
    Send,
    SendOutcome,
    check_history,
)

__all__ = [
    "Anomaly",
    "Delivery",
    "Finding",
    "HistoryChecker",
    "HistoryReport",
    "Send",
    "SendOutcome",
    "check_history",
]
