"""Which buffer a finishing worker writes its weights into, under all-reduce."""

from __future__ import annotations

from plesio.memory.last_weights import LastWeights, Place


def test_weights_of_one_version_share_a_buffer() -> None:
    last = LastWeights((0, 1))
    assert [last.place(worker, version=3) for worker in range(3)] == [0, 0, 0]
    last.died(2)
    last.handed_over(0)
    assert last.whole == Place(3, 0)
    last.handed_over(1)
    assert last.whole == Place(3, 0)


def test_weights_of_two_versions_use_two_buffers() -> None:
    """A broken group leaves some a step behind; the later version counts, whoever finishes first."""
    for first, then in ((0, 1), (1, 0)):
        last = LastWeights((0, 1))
        assert (last.place(0, version=5), last.place(1, version=6)) == (0, 1)
        last.handed_over(first)
        last.handed_over(then)
        assert last.whole == Place(6, 1)


def test_a_third_version_gets_no_buffer() -> None:
    last = LastWeights((0, 1))
    assert last.place(0, version=5) == 0
    last.handed_over(0)
    assert last.place(1, version=6) == 1
    assert last.place(2, version=7) is None
    last.handed_over(2)
    assert last.whole == Place(5, 0)
    last.died(1)
    assert last.place(2, version=7) == 1


def test_complete_weights_survive_a_death() -> None:
    last = LastWeights((1, 2))
    last.place(0, version=5)
    last.handed_over(0)
    assert last.place(1, version=20) == 2
    last.died(1)
    assert last.whole == Place(5, 1)
