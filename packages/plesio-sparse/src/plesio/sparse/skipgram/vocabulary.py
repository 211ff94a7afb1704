"""Which words have vectors, and how often each word occurred in all texts so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from plesio.sparse.corpus import Corpus, locked
from plesio.sparse.saving import digest

_NO_ROW = 2**32 - 1


@dataclass(frozen=True)
class Vocabulary:
    """It is never changed: `plus` makes another.

    Attributes:
        row_of: the row of each word that has a vector.
        counts: how often each of these occurred, by row.
        rare: how often each other word did; with later texts it may be often enough.
        texts: digests of those texts that are not to be counted again.

    >>> from plesio.sparse.corpus import read_corpus
    >>> first = Vocabulary().plus(read_corpus([["to", "be", "to"]]), min_count=2)
    >>> both = first.plus(read_corpus([["be", "or"]]), min_count=2)
    >>> both.row_of, both.counts.tolist(), both.rare
    ({'to': 0, 'be': 1}, [2, 2], {'or': 1})
    """

    row_of: dict[str, int] = field(default_factory=dict)
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rare: dict[str, int] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, corpus: Corpus, rows: int) -> Vocabulary:
        """Of one text, whose first words have rows."""
        row_of = {word: row for row, word in enumerate(corpus.words[:rows])}
        rare = dict(zip(corpus.words[rows:], corpus.counts[rows:].tolist(), strict=True))
        return cls(row_of, corpus.counts[:rows], rare)

    def plus(self, corpus: Corpus, min_count: int, once: bool = False) -> Vocabulary:
        """With a text: counts add up, and words that occur often enough now get the next rows.

        A text that came with `once` is not counted again.
        """
        text = digest((corpus.tokens, corpus.sentences)) + xxh3_64_hexdigest("\n".join(corpus.words).encode())
        row_of, counts, rare = dict(self.row_of), self.counts.copy(), dict(self.rare)
        for word, count in () if text in self.texts else zip(corpus.words, corpus.counts.tolist(), strict=True):
            if word in row_of:
                counts[row_of[word]] += count
            else:
                rare[word] = rare.get(word, 0) + count
        new = sorted((word for word in rare if rare[word] >= min_count), key=lambda word: -rare[word])
        row_of.update(zip(new, range(len(row_of), len(row_of) + len(new)), strict=True))
        counts = np.append(counts, np.array([rare.pop(word) for word in new], np.int64))
        return Vocabulary(row_of, counts, rare, self.texts | {text} if once else self.texts)

    def number(self, corpus: Corpus) -> Corpus:
        """The text with rows for numbers, in memory, and the counts of all texts."""
        rows = np.array([self.row_of.get(word, _NO_ROW) for word in corpus.words], np.uint32)
        return locked(Corpus(rows[corpus.tokens], corpus.sentences, list(self.row_of), self.counts))
