"""Epochs over a corpus: threads that share one model, or that keep out of each other's way.

Free: threads take chunks one after the other and update one shared model, without locks.

Without conflicts: words are dealt into four parts by rank mod 4, and so are the rows of both tables. A round is some
chunks; of its (context, word) pairs a block holds those with contexts of one part and words of one part, and draws their
negatives from that part of the words too. The four blocks of a diagonal share no row: threads do them at once, then the next
diagonal, then the next round. Neither parts nor rounds depend on the number of threads, so the bits do not either (the
grid of Gemulla et al., 2011, with the negatives of GraphVite: Zhu et al., 2019). It costs reading the text 16 times, and
four times as many negatives, as a window's contexts are in four blocks: about half the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.choosing import Chosen, fastest
from plesio.sparse.corpus import longest
from plesio.sparse.epochs import advance
from plesio.sparse.machine import numbers
from plesio.sparse.skipgram.deal import WHOLE, Rules, Share, Text, deal
from plesio.sparse.skipgram.step import PAIR, Model, Scratch, Steps, learn
from plesio.sparse.threads import pool

PARTS = 4
ROUND_CHUNKS = 64


class Turns(NamedTuple):
    """The chunks of an epoch in order, with each turn's learning rate and each chunk's seed."""

    order: NDArray[np.uint32]
    lrs: NDArray[np.float32]
    seeds: NDArray[np.uint64]


class Work(NamedTuple):
    """The work, and the model."""

    text: Text
    rules: Rules
    model: Model
    sigmoid: NDArray[np.float32]
    pooled: bool

    def copy(self) -> Work:
        inputs, outputs, width = self.model
        copy = Model(numbers(inputs.size), numbers(outputs.size), width)
        copy.inputs[:], copy.outputs[:] = inputs, outputs
        return self._replace(model=copy)


class Hand:
    """The buffers of one thread."""

    def __init__(self, work: Work) -> None:
        text, rules, model = work.text, work.rules, work.model
        self._work = work
        sentence = longest(text.sentences)
        chunk = int(np.diff(text.sentences[text.chunks]).max(initial=1))
        self._count = (rules.negative + PAIR) // PAIR * PAIR
        window = 2 * rules.window
        steps = chunk * window if rules.per_pair else chunk
        self._kept, self._reach = np.empty(sentence, np.uint32), np.empty(sentence, np.int64)
        self._steps = Steps(
            np.empty(chunk * window, np.uint32), np.zeros(steps + 1, np.int64), np.empty(steps * self._count, np.uint32)
        )
        row = window * model.width
        self._scratch = Scratch(numbers(row), numbers(row), numbers(window * self._count))

    def deal(self, chunk: int, seed: np.uint64, share: Share = WHOLE) -> int:
        """Make the steps of a chunk, how many."""
        work = self._work
        return int(deal(work.text, chunk, seed, work.rules, share, self._kept, self._reach, *self._steps))

    def steps_of(self, chunk: int, seed: np.uint64, share: Share = WHOLE) -> list[tuple[list[int], list[int]]]:
        """The steps of a chunk: contexts, and the word with its negatives."""
        number = self.deal(chunk, seed, share)
        contexts, starts, targets = (array.tolist() for array in self._steps)
        drawn = self._work.rules.negative + 1
        return [
            (contexts[starts[at] : starts[at + 1]], targets[at * self._count : at * self._count + drawn])
            for at in range(number)
        ]

    def do(self, chunk: int, seed: np.uint64, lr: np.float32, share: Share = WHOLE) -> NDArray[np.float64]:
        """Train on a chunk: the loss of a sample of its pairs, and how many these are."""
        work, rules = self._work, self._work.rules
        number = self.deal(chunk, seed, share)
        how = rules.negative, work.pooled, lr, work.sigmoid, self._scratch
        return np.array(learn(work.model, self._steps, number, self._count, *how))


class Epochs:
    """Does turns with `threads` threads: freely, or by the blocks of a grid, `conflict_free`."""

    def __init__(self, work: Work, threads: int, conflict_free: bool = False) -> None:
        self._threads = threads
        self._hands = [Hand(work) for _ in range(threads)]
        self._tokens = np.diff(work.text.sentences[work.text.chunks])
        self._parts = PARTS if conflict_free else 1

    def __call__(self, turns: Turns) -> tuple[float | None, list[int]]:
        """An epoch: the mean loss of a pair (None without one), and the tokens done by each thread."""
        chunks, parts = len(turns.order), self._parts
        losses, tokens = np.zeros((chunks, parts, parts, 2)), np.zeros(self._threads)

        def one(thread: int, piece: tuple[range, Share]) -> None:
            some, share = piece
            for turn in some:
                chunk = turns.order[turn]
                done = self._hands[thread].do(chunk, turns.seeds[chunk], turns.lrs[turn], share)
                losses[turn, (share.word - share.context) % parts, share.context] = done
                tokens[thread] += self._tokens[chunk] / parts**2
            if thread == 0:  # the caller, whose progress bar it is
                advance(self._threads * len(some) / (chunks * parts**2))

        for pieces in self._rounds(chunks):
            self._deal_out(pieces, one)
        loss, pairs = losses.reshape(-1, 2).sum(axis=0)
        return float(loss / pairs) if pairs else None, [round(done) for done in tokens]

    def _rounds(self, chunks: int) -> Iterator[list[tuple[range, Share]]]:
        """The pieces that may be done at once, each some turns and a share of their pairs; round after round."""
        if self._parts == 1:
            yield [(range(turn, turn + 1), WHOLE) for turn in range(chunks)]
            return
        for first in range(0, chunks, ROUND_CHUNKS):
            some = range(first, min(first + ROUND_CHUNKS, chunks))
            for diagonal in range(PARTS):
                yield [(some, Share(PARTS, part, (part + diagonal) % PARTS)) for part in range(PARTS)]

    def _deal_out(self, pieces: list[Any], one: Callable[[int, Any], None]) -> None:
        """Let threads take the pieces one after the other; if one thread fails the others stop at their next."""
        left = iter(pieces)  # taken under the interpreter's lock, and a piece is milliseconds of work without it
        failed = False

        def work(thread: int) -> None:
            nonlocal failed
            try:
                for piece in left:
                    if failed:
                        return
                    one(thread, piece)
            except BaseException:
                failed = True
                raise

        pool(self._threads).run(work)


def chosen(work: Work, turns: Turns, epochs: int, threads: int) -> Chosen:
    """All threads, or one where that is as fast: tried on a copy of the model and some of the text."""
    copy = work.copy()

    def on_the_copy(_: str, count: int) -> Callable[[int, int], int]:
        sweep = Epochs(copy, count)
        return lambda first, stop: sum(sweep(turns._replace(order=turns.order[first:stop]))[1])

    ways = [("shared", count) for count in (1, threads)]
    size = work.model.inputs.nbytes + work.model.outputs.nbytes
    return fastest(ways, on_the_copy, size, len(turns.order), epochs)


def seeds(chunks: int, seed: int, epoch: int) -> NDArray[np.uint64]:
    """The state each chunk's random numbers start from; never 0."""
    drawn: NDArray[Any] = np.random.default_rng((seed, epoch, 1)).integers(1, 2**64, chunks, dtype=np.uint64)
    return drawn
