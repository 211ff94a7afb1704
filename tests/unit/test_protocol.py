"""Every message round-trips, and invalid bytes are refused by one error."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.protocol import evaluator, launcher, worker
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.transport.doorbell import ANSWER_BYTES_MAX
from support.long_forms import examples
from support.messages import messages

UNIONS = {
    "channel to server": worker.ToServer,
    "channel to worker": worker.ToWorker,
    "pipe to server": worker.FromWorker,
    "pipe to worker": worker.Answer,
    "evaluator to server": evaluator.Asked,
    "server to evaluator": evaluator.Told,
    "server to launcher": launcher.FromServer,
    "worker to launcher": launcher.FromWorker,
    "evaluator to launcher": launcher.FromEvaluator,
}
KINDS = [pytest.param(union, kind, id=kind.__name__) for union in UNIONS.values() for kind in get_args(union)]
QUICK = settings(max_examples=examples(10), deadline=None)


@pytest.mark.few(7)
@pytest.mark.parametrize(("union", "kind"), KINDS)
@QUICK
@given(data=st.data())
def test_messages_round_trip(union: object, kind: type, data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    again: Any = decoder_of(union)(encode(message))
    assert type(again) is kind
    assert again == message


@pytest.mark.few(2)
@pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS.keys())
@QUICK
@given(data=st.data())
def test_damaged_bytes_are_a_message_or_a_protocol_error(union: object, data: st.DataObject) -> None:
    body = bytearray(encode(data.draw(messages(union))))
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=6)):
        body[place] = byte
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    for damaged in (cut, data.draw(st.binary(max_size=60))):
        try:
            again: Any = decoder_of(union)(damaged)
        except ProtocolError:
            continue
        assert isinstance(again, get_args(union))


@QUICK
@given(messages(worker.Answer))
def test_an_answer_fits_into_its_record(answer: worker.Answer) -> None:
    assert len(encode(answer)) <= ANSWER_BYTES_MAX


def test_a_message_of_another_connection_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no message"):
        decoder_of(worker.Answer)(encode(worker.Farewell()))
