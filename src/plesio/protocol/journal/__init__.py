"""The journal: the ordered record of a run's decisions, enough to replay it bit for bit."""

from plesio.protocol.journal.reader import NO_END, Journal, Missing, read_journal
from plesio.protocol.journal.records import (
    FILE_NAME,
    FORMAT,
    Ended,
    Evicted,
    Folded,
    FoldedMember,
    JournalError,
    JournalEvent,
    JournalHead,
    Noted,
    Received,
    Record,
    Resumed,
)
from plesio.protocol.journal.writer import JournalWriter

__all__ = [
    "FILE_NAME",
    "FORMAT",
    "NO_END",
    "Ended",
    "Evicted",
    "Folded",
    "FoldedMember",
    "Journal",
    "JournalError",
    "JournalEvent",
    "JournalHead",
    "JournalWriter",
    "Missing",
    "Noted",
    "Received",
    "Record",
    "Resumed",
    "read_journal",
]
