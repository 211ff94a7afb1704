"""From text to steps: which words are kept, which are each other's context, which are drawn at random.

As in word2vec.c: frequent words are left out now and then, the window around a word is 1 to `window` words wide, and
negative examples are drawn from the vocabulary by count^0.75. What is left out and how wide the windows are depends on
the chunk's seed alone, so a share of the pairs is a share of the same windows.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled, inlined
from plesio.sparse.skipgram.step import PAIR


class Text(NamedTuple):
    """Chunk c is the sentences chunks[c] to chunks[c + 1] - 1, sentence s the tokens sentences[s] to sentences[s + 1] - 1."""

    tokens: NDArray[np.uint32]
    sentences: NDArray[np.int64]
    chunks: NDArray[np.int64]


class Rules(NamedTuple):
    """How steps are made: words to either side at most, negatives, whether a step is a pair or a window; two tables.

    A word is kept if 32 random bits are at most keep[word]; for `alias` see `tables.alias`.
    """

    window: int
    negative: int
    per_pair: bool
    keep: NDArray[np.uint32]
    alias: NDArray[np.uint64]


class Share(NamedTuple):
    """Pairs with (context mod parts, word mod parts) = (context, word) are dealt; with 1 part that is all of them."""

    parts: int
    context: int
    word: int


WHOLE = Share(1, 0, 0)

_1, _12, _25, _27, _32 = np.uint64(1), np.uint64(12), np.uint64(25), np.uint64(27), np.uint64(32)
_LOW, _STAR = np.uint64(0xFFFFFFFF), np.uint64(2685821657736338717)


@inlined
def _follow(state):
    """The next state of xorshift64* (Vigna, 2016); state · _STAR is the random number."""
    state ^= state >> _12
    state ^= state << _25
    return state ^ (state >> _27)


@compiled
def deal(text, chunk, seed, rules, share, kept, reach, contexts, starts, targets):
    """Write the steps of a chunk into the last three (see `step.Steps`): how many.

    `kept` and `reach` are room for the longest sentence.
    """
    tokens, sentences, chunks = text
    window, negative, per_pair, keep, alias = rules
    words, parts = np.uint64(keep.size), np.uint64(share.parts)
    word_part, context_part = np.uint64(share.word), np.uint64(share.context)
    columns = (words - word_part + parts - _1) // parts
    count = (negative + PAIR) // PAIR * PAIR
    state = np.uint64(seed)
    noise = (state ^ (word_part * parts + context_part + _1) * _STAR) | _1
    number, end, target = 0, 0, 0
    for sentence in range(chunks[chunk], chunks[chunk + 1]):
        length = 0
        for position in range(sentences[sentence], sentences[sentence + 1]):
            word = np.uint64(tokens[position])
            if word < words:
                state = _follow(state)
                draw = state * _STAR
                if draw >> _32 <= keep[word]:
                    kept[length] = word
                    reach[length] = 1 + (np.int64(draw & _LOW) * window >> 32)
                    length += 1
        for i in range(length):
            word = np.uint64(kept[i])
            if word % parts != word_part:
                continue
            begin, last = i - reach[i], i + reach[i]
            if begin < 0:
                begin = 0
            if last >= length:
                last = length - 1
            for j in range(begin, last + 1):
                if j != i and kept[j] % parts == context_part:
                    contexts[end] = kept[j]
                    end += 1
                if end > starts[number] and (per_pair or j == last):
                    targets[target] = word
                    for t in range(target + 1, target + 1 + negative):
                        other = word
                        while other == word:
                            noise = _follow(noise)
                            draw = noise * _STAR
                            other = (draw >> _32) * columns >> _32
                            other = other * parts + word_part
                            if draw & _LOW > alias[other] >> _32:
                                other = alias[other] & _LOW
                        targets[t] = other
                    if count > negative + 1:
                        targets[target + count - 1] = word
                    target += count
                    number += 1
                    starts[number] = end
    return number
