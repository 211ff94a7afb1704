"""The report of a fitted `SkipGram`: which rows its steps touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plesio.sparse.epochs import Epoch
from plesio.sparse.report import Report, measure
from plesio.sparse.skipgram.training import Hand, Turns, Work

SAMPLED_STEPS = 100_000
_FLOAT_BYTES = 4


def report(work: Work, turns: Turns, threads: int, model: str, epochs: Sequence[Epoch], seed: int) -> Report:
    """Measure on the first steps of an epoch. An example is a step, a parameter is a row of one of the two tables.

    But the speeds, which are of `epochs`, are in words of text.
    """
    hand = Hand(work)
    words = len(work.rules.keep)
    touched: list[list[int]] = []
    tokens = 0
    for chunk in turns.order:
        touched += [
            contexts + [words + word for word in drawn] for contexts, drawn in hand.steps_of(chunk, turns.seeds[chunk])
        ]
        tokens += int(np.diff(work.text.sentences[work.text.chunks[chunk : chunk + 2]])[0])
        if len(touched) >= SAMPLED_STEPS:
            break
    indptr = np.cumsum([0] + [len(rows) for rows in touched], dtype=np.int64)
    indices = np.fromiter((row for rows in touched for row in rows), np.uint32, count=int(indptr[-1]))
    row_bytes = 2 * _FLOAT_BYTES * work.model.width  # read, and written
    return measure(
        indptr, indices, 2 * words, threads=threads, model=model, epochs=epochs,
        bytes_per_example=row_bytes * len(indices) / max(tokens, 1), seed=seed,
    )  # fmt: skip
