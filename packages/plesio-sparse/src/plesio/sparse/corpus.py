"""Text made into numbers once: a corpus in memory, or in a folder that is read where it lies.

Turning text into numbers takes about as long as an epoch of training, so it is done once. A word's number is its rank by
count: the words of at least a minimum count are a head of the vocabulary, whatever that minimum is. A folder holds
`tokens.npy` (uint32), `sentences.npy` (int64 bounds) and `corpus.json` (words and counts, written last); the first two
are memory-mapped, so a corpus may be larger than memory.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError

LONGEST = 10_000
"""Longer sentences are cut, as in word2vec.c and gensim: a text without line ends is one sentence otherwise."""
_BLOCK = 1 << 20  # tokens, or sentences
FORMAT = 1
_FILES = ("tokens.npy", "sentences.npy", "corpus.json")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sentences as word numbers.

    Attributes:
        tokens: the number of each word of the text, in order; uint32.
        sentences: sentence s is tokens[sentences[s]:sentences[s + 1]]; int64.
        words: the vocabulary, most frequent first; a word's number is its place.
        counts: how often each occurs; int64.

    >>> corpus = read_corpus([["to", "be", "or", "not", "to", "be"], ["or", "not"]])
    >>> len(corpus), corpus.words[0], corpus.sentences.tolist()
    (8, 'to', [0, 6, 8])
    """

    tokens: NDArray[np.uint32]
    sentences: NDArray[np.int64]
    words: list[str]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        """How many words the text has."""
        return len(self.tokens)


Sentences = str | os.PathLike[str] | Corpus | Iterable[Sequence[str]]
"""What can be read: token lists, a text file (a sentence a line), a corpus's folder, a corpus."""


def read_corpus(sentences: Sentences) -> Corpus:
    """The corpus in memory, or where it lies if it is a folder.

    Raises ConfigurationError if there is no text, a sentence is not a sequence of words, or a file is not there.

    >>> read_corpus([["to", "be"]]).counts.tolist()
    [1, 1]
    """
    if isinstance(sentences, Corpus):
        return sentences
    if isinstance(sentences, str | os.PathLike) and Path(sentences).is_dir():
        return open_corpus(sentences)
    blocks: list[array[int]] = []
    numbered = _Numbered(sentences, blocks.append)
    tokens = np.concatenate([numbered.ranks[np.frombuffer(block, np.uint32)] for block in blocks])
    return locked(Corpus(tokens, numbered.bounds, numbered.words, numbered.counts))


def save_corpus(folder: str | os.PathLike[str], sentences: Sentences) -> Corpus:
    """Write the text as numbers into `folder`, block by block, and open it: for texts read more than once, or too large.

    A corpus that is there stays until the new one is whole. Raises ConfigurationError as `read_corpus` does.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_corpus(folder, [["to", "be"], ["or"]]).words
    ['to', 'be', 'or']
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=place) as beside:
        new = Path(beside)
        with open(new / "tokens.unranked", "wb") as spill:
            numbered = _Numbered(sentences, lambda block: block.tofile(spill))
        unranked = np.memmap(spill.name, np.uint32, mode="r")
        tokens = np.lib.format.open_memmap(new / "tokens.npy", mode="w+", dtype=np.uint32, shape=unranked.shape)
        for begin in range(0, len(tokens), _BLOCK):
            tokens[begin : begin + _BLOCK] = numbered.ranks[unranked[begin : begin + _BLOCK]]
        tokens.flush()
        np.save(new / "sentences.npy", numbered.bounds)
        counts = numbered.counts.tolist()
        about = {"format": FORMAT, "tokens": len(tokens), "words": numbered.words, "counts": counts}
        (new / "corpus.json").write_text(json.dumps(about), encoding="utf-8")
        (place / _FILES[-1]).unlink(missing_ok=True)  # there is no corpus until there is a whole one
        for name in _FILES:
            os.replace(new / name, place / name)
    return open_corpus(place)


def open_corpus(folder: str | os.PathLike[str]) -> Corpus:
    """The corpus that `save_corpus` wrote, memory-mapped.

    Raises ConfigurationError if there is none, it is not whole, or it is of a newer plesio.
    """
    place = Path(folder)
    try:
        about = json.loads((place / "corpus.json").read_text(encoding="utf-8"))
        tokens = np.load(place / "tokens.npy", mmap_mode="r")
        sentences = np.load(place / "sentences.npy", mmap_mode="r")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{str(place)!r} holds no whole corpus ({error}); write one with plesio.sparse.corpus.save_corpus."
        ) from error
    if about.get("format") != FORMAT or not len(tokens) == about["tokens"] == sentences[-1]:
        raise ConfigurationError(
            f"{str(place)!r}: corpus of format {about.get('format')!r} with {len(tokens)} of {about.get('tokens')} tokens; "
            f"this plesio reads whole ones of format {FORMAT}: write it again with save_corpus."
        )
    return locked(
        Corpus(np.asarray(tokens), np.asarray(sentences), about["words"], np.array(about["counts"], np.int64))
    )


def longest(sentences: NDArray[np.int64]) -> int:
    """The words of the longest sentence, of their bounds; block by block, as these may be larger than memory too."""
    starts = range(0, len(sentences) - 1, _BLOCK)
    return max((int(np.diff(sentences[at : at + _BLOCK + 1]).max()) for at in starts), default=0)


def locked(corpus: Corpus) -> Corpus:
    """Not to be written to: a memory-mapped corpus cannot be, and kernels are compiled for one kind of array."""
    corpus.tokens.flags.writeable = corpus.sentences.flags.writeable = False
    return corpus


def _words(sentences: Sentences) -> Iterator[Sequence[str]]:
    """The sentences one by one, checked and cut."""
    if isinstance(sentences, Corpus):
        bounds = zip(sentences.sentences[:-1], sentences.sentences[1:], strict=True)
        yield from ([sentences.words[token] for token in sentences.tokens[begin:end]] for begin, end in bounds)
        return
    for number, words in enumerate(_read(sentences)):
        listed = isinstance(words, list)  # as a line of text is: no more looks at it
        if not listed and (isinstance(words, (str, bytes)) or not isinstance(words, (Sequence, np.ndarray))):
            raise ConfigurationError(
                f"sentence {number} is {words!r:.60}, a {type(words).__name__}; a sentence is a list of words: "
                "split it, or give the name of a text file with a sentence a line."
            )
        if len(words) <= LONGEST:
            yield words
        else:
            yield from (words[begin : begin + LONGEST] for begin in range(0, len(words), LONGEST))


def _read(sentences: Any) -> Iterator[Sequence[str]]:
    if not isinstance(sentences, str | os.PathLike):
        yield from sentences
        return
    if not Path(sentences).is_file():
        raise ConfigurationError(
            f"there is no file or folder {str(sentences)!r:.200}; give the name of a text file with a sentence a line, "
            "the folder of a corpus, or lists of words (a text itself must be split first)."
        )
    with open(sentences, encoding="utf-8-sig", errors="replace") as lines:
        yield from map(str.split, lines)


class _Numbered:
    """Words numbered as they come, with their `words`, `counts` and the `bounds` of the sentences.

    Blocks of numbers are given to `keep`, so that only one need be in memory. Rank of a number by falling count: `ranks`.
    """

    def __init__(self, sentences: Sentences, keep: Callable[[array[int]], object]) -> None:
        numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        tokens, lengths, counts = array("I"), array("q", [0]), np.zeros(0, np.int64)

        def end_of_block() -> None:
            nonlocal counts, tokens
            more = np.bincount(np.frombuffer(tokens, np.uint32), minlength=len(numbers))
            more[: len(counts)] += counts
            keep(tokens)
            counts, tokens = more, array("I")

        for words in _words(sentences):
            before = len(tokens)
            try:
                tokens.extend(map(numbers.__getitem__, words))
            except TypeError as error:  # not hashable
                raise ConfigurationError(f"{words!r:.60} is no sentence: words are strings ({error}).") from error
            if len(tokens) > before:
                lengths.append(len(tokens) - before)
            if len(tokens) >= _BLOCK:
                end_of_block()
        end_of_block()
        if not numbers:
            raise ConfigurationError("the corpus is empty: there is no word in any sentence; give some text.")
        for word in numbers:
            if not isinstance(word, str):
                raise ConfigurationError(f"the word {word!r:.60} is a {type(word).__name__}; words are strings.")
        order = np.argsort(-counts, kind="stable")
        self.ranks = np.empty(len(order), np.uint32)
        self.ranks[order] = np.arange(len(order), dtype=np.uint32)
        found = list(numbers)
        self.words, self.counts = [found[number] for number in order], counts[order]
        self.bounds = np.cumsum(lengths, dtype=np.int64)
