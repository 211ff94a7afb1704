"""Answers that wait until standbys have what they are about."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

from plesio.core.events import Verdict
from plesio.launch.local.replicated_turns import ReplicatedTurns
from plesio.launch.local.worker_lines import WorkerLines
from plesio.protocol.worker import GoOn
from plesio.transport.doorbell import AnswerReader, Located
from plesio.transport.replication_log import ALL, ReplicationLog


def test_two_answers_to_a_worker_wait_and_both_reach_it() -> None:
    """Its step is called off, and what it had sent by then is answered: before a standby has either."""
    turns, (read, write) = ReplicatedTurns(Mock(), waits=True), os.pipe()
    line: Any = Mock(worker=0, answer=write, answers=0, gone=False, leaving=False)
    workers = WorkerLines([line], Mock(), turns, Mock(), Mock(), Mock(), Mock())
    server: Any = Mock(**{"program.begun": False})
    log = turns._memory.log = ReplicationLog.create(4096)
    log.has = 0
    for version in (1, 2):
        log.put(b"what it did")
        workers._answer(0, Located(GoOn(version, False, Verdict.TAKEN), 0))
        turns._log_turn(server)
    assert len(turns._answers) == 2
    log.has = ALL
    turns._answer(log)
    reader = AnswerReader(read)
    assert [reader.read() is not None for _ in range(2)] == [True, True]
    os.close(read)
    os.close(write)
