"""word2vec against gensim: words/s of training, and what the vectors are worth on the Google analogies.

Speed is taken run by run on every eighth line of the corpus, with the whole corpus's vocabulary; accuracy from one training
on all of it. Both sides have their vocabulary before the clock starts: gensim then reads text in its fastest way, from a
file, and plesio numbers made of it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _hogwild_data import corpus
from _hogwild_race import Fit, Given, Runs, faster, points_short, race
from _hogwild_rivals import RivalMissingError, questions
from _report import Row, progress

COMMON: dict[str, Any] = {"vector_size": 100, "window": 5, "min_count": 5, "negative": 5, "sample": 1e-3}
EPOCHS = 2
PAIRS = 3  # times the runs: single pairs of fits by one and two threads differ by a factor of two on shared cores
RESTRICT = 15_000
UNIT = "k words/s"
THREADS = {1: "1 thread", 2: "2 threads"}


def rows(given: Given) -> list[Row]:
    """Speed, then accuracy; a smoke run trains on little and asks no questions."""
    with tempfile.TemporaryDirectory() as folder:
        lines = corpus().read_text().splitlines(keepends=True)
        whole, part = Path(folder, "whole.txt"), Path(folder, "part.txt")
        whole.write_text("".join(lines[::20] if given.quick else lines))
        part.write_text("".join(lines[::200] if given.quick else lines[::8]))
        found = speed(given, whole, part)
        if given.quick:
            return found
        if questions() is None:
            progress.print("left out: the analogies, which come with gensim: python benchmarks/hogwild.py --setup")
            return found
        return found + accuracy(given, whole)


def speed(given: Given, whole: Path, part: Path) -> list[Row]:
    able = contenders(given, whole, part, epochs=EPOCHS)
    results = race("word2vec", able, given.runs)
    words = EPOCHS * len(part.read_text().split()) / 1e3
    label = f"word2vec, vocabulary of {len(whole.read_text().split()) / 1e6:.2f} M tokens"
    wanted = {1: ">= 3", 2: ">= 5"}
    found = []
    for threads, name in THREADS.items():
        found += faster(label, results, f"shared negatives, {name}", f"gensim, {name}", words, UNIT, wanted[threads])
        found += faster(label, results, f"a draw a pair, {name}", f"gensim, {name}", words, UNIT)
    mine, other = (f"shared negatives, {name}" for name in (THREADS[2], THREADS[1]))
    results = race("word2vec, two threads", {name: able[name] for name in (mine, other)}, PAIRS * given.runs)
    return found + faster(label, results, mine, other, words, UNIT, ">= 1.8")


def accuracy(given: Given, whole: Path) -> list[Row]:
    """One training each on all of the text, and the analogies that its vectors solve."""
    results: dict[str, Runs] = {}
    for name, fit in contenders(given, whole, whole, epochs=EPOCHS, scored=True).items():
        if name.startswith("a draw a pair"):
            continue
        try:
            start_s = time.perf_counter()
            seconds, score = fit()
        except RivalMissingError as missing:
            progress.print(f"word2vec accuracy: left out: {missing}")
            continue
        progress.print(f"word2vec {name}: {seconds:.1f} s, {score:.4f} ({time.perf_counter() - start_s:.0f} s)")
        results[name] = Runs([seconds], [score])
    found = []
    for name in THREADS.values():
        mine, other = f"shared negatives, {name}", f"gensim, {name}"
        label = f"word2vec, analogies among {RESTRICT:,} words after {EPOCHS} epochs"
        found += points_short(label, results, mine, other, 0.5)
    return found


def contenders(given: Given, whole: Path, part: Path, *, epochs: int, scored: bool = False) -> dict[str, Fit]:
    """Train on `part` with the vocabulary of `whole`; `scored`: and solve analogies."""
    from plesio.sparse.corpus import Corpus, read_corpus

    vocabulary = read_corpus(whole)
    text = vocabulary if part == whole else numbered(part, vocabulary.words)
    corpus_ = Corpus(text.tokens, text.sentences, vocabulary.words, vocabulary.counts)
    deposit = given.rivals.deposit({"words": np.array(vocabulary.words), "counts": vocabulary.counts})

    def ours(threads: int, negatives: str) -> Fit:
        def fit() -> tuple[float, float]:
            from plesio.sparse.skipgram import SkipGram

            # "auto" would not look for something faster than one thread on so little text.
            settings = {**COMMON, "epochs": epochs, "threads": threads, "negatives": negatives}
            model = SkipGram(**settings, model="shared", seed=1)
            start_s = time.perf_counter()
            model.fit(corpus_)
            seconds = time.perf_counter() - start_s
            return seconds, solved(model.wv.index_to_key, model.wv.vectors) if scored else 0.0

        return fit

    def gensim(threads: int) -> Fit:
        def fit() -> tuple[float, float]:
            answer = given.rivals.ask("gensim", deposit, part=str(part), epochs=epochs, threads=threads, common=COMMON)
            score = solved(answer["words"].tolist(), answer["vectors"]) if scored else 0.0
            return float(answer["seconds"]), score

        return fit

    found = {}
    for threads, name in THREADS.items():
        found[f"shared negatives, {name}"] = ours(threads, "shared")
        found[f"a draw a pair, {name}"] = ours(threads, "per_pair")
        found[f"gensim, {name}"] = gensim(threads)
    return found


def numbered(path: Path, words: list[str]) -> Any:
    """The text in another text's numbers."""
    from plesio.sparse.corpus import Corpus

    number = {word: place for place, word in enumerate(words)}
    with path.open() as file:
        sentences = [[number[word] for word in line.split()] for line in file]
    bounds = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])]).astype(np.int64)
    flat = np.array([token for sentence in sentences for token in sentence], np.uint32)
    bounds.flags.writeable = flat.flags.writeable = False
    return Corpus(flat, bounds, words, np.zeros(len(words), np.int64))


def solved(words: list[str], vectors: NDArray[np.float32]) -> float:
    """Share of the Google analogies, a is to b as c is to d, solved among the most frequent words: d nearest to b - a + c."""
    path = questions()
    assert path is not None
    words = words[:RESTRICT]
    number = {word: place for place, word in enumerate(words)}
    lines = [line.lower().split() for line in path.read_text().splitlines() if not line.startswith(":")]
    asked = np.array([[number[word] for word in line] for line in lines if all(word in number for word in line)])
    unit = vectors[: len(words)] / np.linalg.norm(vectors[: len(words)], axis=1, keepdims=True)
    right = 0
    for start in range(0, len(asked), 1000):
        a, b, c, d = asked[start : start + 1000].T
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        for given in (a, b, c):
            scores[np.arange(len(given)), given] = -np.inf
        right += int((scores.argmax(axis=1) == d).sum())
    return right / len(asked)
