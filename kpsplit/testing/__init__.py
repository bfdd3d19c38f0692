"""For tests of applications that use kpsplit, and of kpsplit itself."""

from kpsplit.testing.history import (
    Anomaly,
    Delivery,
    FoundAnomaly,
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
    "FoundAnomaly",
    "HistoryChecker",
    "HistoryReport",
    "RawRecord",
    "ReadingChecker",
    "ReadingReport",
    "Send",
    "SendOutcome",
    "check_history",
]
