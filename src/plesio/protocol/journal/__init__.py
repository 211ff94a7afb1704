"""The journal: the ordered record of a run's decisions, enough to replay it bit for bit."""

from plesio.protocol.journal.reader import NO_END as NO_END
from plesio.protocol.journal.reader import Journal as Journal
from plesio.protocol.journal.reader import read_journal as read_journal
from plesio.protocol.journal.records import BEGINS as BEGINS
from plesio.protocol.journal.records import ELSEWHERE as ELSEWHERE
from plesio.protocol.journal.records import FILE_NAME as FILE_NAME
from plesio.protocol.journal.records import FORMAT as FORMAT
from plesio.protocol.journal.records import ISLANDS as ISLANDS
from plesio.protocol.journal.records import Decision as Decision
from plesio.protocol.journal.records import Ended as Ended
from plesio.protocol.journal.records import JournalError as JournalError
from plesio.protocol.journal.records import JournalHead as JournalHead
from plesio.protocol.journal.records import Noted as Noted
from plesio.protocol.journal.records import Record as Record
from plesio.protocol.journal.records import Resumed as Resumed
from plesio.protocol.journal.writer import JournalWriter as JournalWriter
