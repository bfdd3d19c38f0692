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
from kpsplit.testing.readings import RawRecord, ReadingChecker, ReadingReport

__all__ = [
    "Anomaly",
    "Delivery",
    "Finding",
    "HistoryChecker",
    "HistoryReport",
    "RawRecord",
    "ReadingChecker",
    "ReadingReport",
    "Send",
    "SendOutcome",
    "check_history",
]
