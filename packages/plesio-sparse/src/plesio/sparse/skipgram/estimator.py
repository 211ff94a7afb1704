"""`SkipGram`: word2vec with the settings its users know."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from plesio.errors import ConfigurationError
from plesio.kernels.lanes import LANES
from plesio.sparse.chunks import chunk_order
from plesio.sparse.corpus import Corpus, Sentences, longest, read_corpus
from plesio.sparse.epochs import Epoch, run_epochs
from plesio.sparse.keyed_vectors import KeyedVectors
from plesio.sparse.machine import numbers
from plesio.sparse.rates import rate
from plesio.sparse.report import Report, measure
from plesio.sparse.saving import Checkpoint
from plesio.sparse.settings import Shown, functions, number, one_of, whole
from plesio.sparse.skipgram.deal import Rules, Text
from plesio.sparse.skipgram.step import Model
from plesio.sparse.skipgram.tables import alias, keep, sigmoid
from plesio.sparse.skipgram.training import PARTS, Epochs, Hand, Turns, Work, chosen, seeds
from plesio.sparse.skipgram.vocabulary import Vocabulary
from plesio.sparse.threads import thread_count

CHUNK_TOKENS = 8192
SAMPLED_STEPS = 100_000
_ROWS_AT_ONCE = 1024  # drawn where a cache holds them
_MODELS = ("auto", "shared")
_NEGATIVES = ("per_pair", "shared")
_MUST_AGREE = ("vector_size", "window", "negative", "negatives", "cbow", "sample", "ns_exponent", "lr", "min_lr",
               "epochs", "deterministic", "seed")  # fmt: skip


class SkipGram(Shown):
    """Word vectors by word2vec: skip-gram or CBOW with negative sampling, lock-free on all cores.

    For a word w with a context c in its window and words n drawn by count^ns_exponent, a step goes up the gradient of

        log σ(in[c] · out[w]) + Σ_n log σ(−in[c] · out[n])

    (Mikolov, Sutskever, Chen, Corrado and Dean, 2013). `in` are the vectors in the end. With `negatives="shared"` all
    contexts of a window meet the same n, in one step (Ji et al., 2016): vectors as good in half the time. Chunks of text
    are shuffled each epoch.

    Args:
        vector_size: numbers in a vector.
        window: contexts to either side at most; each word draws its own from 1 to this.
        min_count: words that occur less often are left out.
        negative: words drawn for each step.
        negatives: "shared", or "per_pair" as in word2vec.c: a draw for each context.
        cbow: predict the word from the mean of its contexts instead of from each.
        sample: words of more than this share of the text are left out now and then; 0 keeps all.
        ns_exponent: negatives are drawn by count to the power of this.
        lr, min_lr: the learning rate falls in a line from `lr` to `min_lr` over all epochs.
        epochs: sweeps over the text.
        threads: None for all cores. The same `seed` gives the same bits with one.
        model: "auto" takes one thread where a short trial shows that more are no faster, or with little text (a model above
            256 MB is not tried, all threads share it); "shared" takes all asked for.
        deterministic: the same bits for any number of threads, at about half the speed; up to four work at once, and
            CBOW, whose steps each touch all of the vocabulary's parts, is done by one.
        callbacks: each is called with an `Epoch` after it; one that returns True ends the training.
        progress: show a bar.
        checkpoint, resume: a folder to write the model to after each epoch; one to go on from.

    Attributes:
        wv: the vectors, a `KeyedVectors`.
        history_: an `Epoch` for each epoch, also before a resume; its loss is that of a pair, from a sample of 1 in 32 steps.
        model_, threads_: what "auto" came to.
        report_: how threads met: see `plesio.sparse.Report`.

    Raises:
        ConfigurationError: for a setting that does not exist or cannot work.
        DivergedError: from `fit`, if the loss is not finite.

    >>> text = [["sun", "moon", "star"], ["bread", "milk", "honey"]] * 200
    >>> skipgram = SkipGram(vector_size=16, min_count=1, sample=0, epochs=10, threads=1).fit(text)
    >>> sorted(word for word, _ in skipgram.wv.most_similar("sun", topn=2))
    ['moon', 'star']
    """

    wv: KeyedVectors
    history_: list[Epoch]
    model_: str
    threads_: int
    _fitted: Work
    _corpus: Corpus
    _vocabulary: Vocabulary | None  # None after a fit until it is needed: many fits never do
    _report: Report | None

    def __init__(
        self,
        *,
        vector_size: int = 100,
        window: int = 5,
        min_count: int = 5,
        negative: int = 5,
        negatives: str = "shared",
        cbow: bool = False,
        sample: float = 1e-3,
        ns_exponent: float = 0.75,
        lr: float = 0.025,
        min_lr: float = 1e-4,
        epochs: int = 5,
        threads: int | None = None,
        model: str = "auto",
        deterministic: bool = False,
        seed: int = 0,
        callbacks: Iterable[Callable[[Epoch], object]] = (),
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        self.vector_size, self.window = whole("vector_size", vector_size, 1), whole("window", window, 1)
        self.min_count, self.negative = whole("min_count", min_count, 1), whole("negative", negative, 1)
        self.epochs, self.seed = whole("epochs", epochs, 1), whole("seed", seed, 0)
        self.sample, self.ns_exponent = number("sample", sample, 0), number("ns_exponent", ns_exponent, -math.inf)
        self.lr, self.min_lr = number("lr", lr), number("min_lr", min_lr, 0)
        self.negatives, self.cbow = one_of("negatives", negatives, _NEGATIVES), cbow
        self.threads, self.model, self.deterministic = threads, one_of("model", model, _MODELS), deterministic
        self.callbacks, self.progress = functions(callbacks), progress
        self.checkpoint, self.resume = checkpoint, resume
        if min_lr > lr:
            raise ConfigurationError(
                f"min_lr={min_lr!r} is above lr={lr!r}; allowed is at most lr: the rate falls to it."
            )
        rate("linear", lr=self.lr)  # complains now

    def fit(self, sentences: Sentences) -> SkipGram:
        """Learn from lists of words, a text file with a sentence a line, or a corpus or its folder; itself.

        A text that is trained on more than once, or does not fit into memory: `plesio.sparse.save_corpus`.

        Raises ConfigurationError if there is too little to learn from.
        """
        corpus = read_corpus(sentences)
        return self._learn(corpus, self._work(corpus, len(self._frequent(corpus))))

    def partial_fit(self, sentences: Sentences) -> SkipGram:
        """One more sweep, over this text only; words that are frequent enough by now get vectors, after the old ones; itself.

        The text is counted first, each time, unless `build_vocab` counted it. The rate stays at `lr`, as nobody knows where
        its fall would end. The text's numbers and a copy of the model are held in memory; an error leaves the model as it was.
        There is no checkpoint of it: pickle the model.

        Arguments and errors as in `fit`. Vectors in `wv` that you changed count; other words there, or another `vector_size`,
        are an error.

        >>> text = [["sun", "moon", "star"], ["bread", "milk", "honey"]] * 200
        >>> skipgram = SkipGram(vector_size=16, min_count=2, threads=1).fit(text)
        >>> skipgram.partial_fit([["comet", "star", "moon"]] * 50).wv.get_vecattr("star", "count")
        250
        >>> skipgram.wv.index_to_key[-1]
        'comet'
        """
        return self._learn(*self._grown(sentences))

    def build_vocab(self, sentences: Sentences, update: bool = False) -> SkipGram:
        """Count the words of a text and give those that are frequent enough a vector, without training; itself.

        With `update` to what was counted before: old words keep their vectors and places, and `min_count` is for the sum over
        all texts, those of words too rare so far included. The draws of negatives and the leaving out of frequent words go by
        these sums, too. `partial_fit` then trains on this text, as often as you like, without counting it again.

        Raises ConfigurationError without `update` if there is a vocabulary, with it if there is none, and as `fit` does.
        """
        if update != ("_fitted" in vars(self)):
            there = "there is none to update: call fit() or build_vocab(sentences) first"
            raise ConfigurationError(
                f"build_vocab(update={update}), but {there if update else 'there is a vocabulary: update=True adds to it'}."
            )
        corpus, work, vocabulary = self._grown(sentences, once=True)
        if not update:
            self.model_, self.threads_, self.history_ = "shared", 1, []
        return self._take(corpus, work, vocabulary)

    def _grown(self, sentences: Sentences, once: bool = False) -> tuple[Corpus, Work, Vocabulary]:
        """A text by rows, and a copy of the model with rows for new words."""
        given, old = read_corpus(sentences), Vocabulary()
        if "_fitted" in vars(self):
            old = self._vocabulary or Vocabulary.of(self._corpus, len(self._fitted.rules.keep))
            if self.wv.index_to_key != list(old.row_of) or self.wv.vector_size != self.vector_size:
                raise ConfigurationError(
                    f"wv has {len(self.wv)} words and vectors of {self.wv.vector_size} numbers; allowed are the words learnt "
                    f"({len(old.row_of)}), in their order, and vector_size={self.vector_size}."
                )
        vocabulary = old.plus(given, self.min_count, once)
        self._check(len(vocabulary.row_of), given, trains=not once)
        corpus = vocabulary.number(given)
        work = self._work(corpus, len(corpus.words))
        if old.row_of:
            self._rows(work.model.inputs)[: len(old.row_of)] = self.wv.vectors
            work.model.outputs[: self._fitted.model.outputs.size] = self._fitted.model.outputs
        return corpus, work, vocabulary

    def _learn(self, corpus: Corpus, work: Work, vocabulary: Vocabulary | None = None) -> SkipGram:
        """From the beginning; with a vocabulary, one epoch more."""
        anew = vocabulary is None
        history: list[Epoch] = [] if anew else list(vars(self).get("history_", []))
        epochs = self.epochs if anew else len(history) + 1
        words = corpus.words[: len(work.rules.keep)]
        chunks = len(work.text.chunks) - 1
        checkpoint = Checkpoint(
            self,
            _MUST_AGREE,
            (corpus.tokens, corpus.sentences),
            family="word2vec",
            vocabulary=xxh3_64_hexdigest("\n".join(words).encode()),
        )
        tables = {"inputs": work.model.inputs, "outputs": work.model.outputs}
        if self.resume is not None and anew:
            kept, _, history = checkpoint.load()
            for name, table in tables.items():
                table[:] = kept[name]
        self.model_, self.threads_ = self._chosen(work, self.epochs if anew else 1)
        sweep = Epochs(work, self.threads_, self.deterministic and self._parts(len(words)) > 1)

        def one(number: int) -> Epoch:
            turns = self._turns(work.text, number, "linear" if anew else "constant")
            began = time.perf_counter()
            loss, tokens = sweep(turns)
            seconds = time.perf_counter() - began
            return Epoch(number, float(turns.lrs[chunks - 1]), loss, sum(tokens), seconds, tuple(tokens))

        run_epochs(
            range(len(history), epochs),
            one,
            callbacks=self.callbacks,
            progress=self.progress,
            label="cbow" if self.cbow else "skip-gram",
            save=lambda: checkpoint.save(tables, history) if anew else None,
            history=history,
        )
        self.history_ = history
        return self._take(corpus, work, vocabulary)

    def _take(self, corpus: Corpus, work: Work, vocabulary: Vocabulary | None) -> SkipGram:
        self._fitted, self._corpus, self._vocabulary, self._report = work, corpus, vocabulary, None
        words = len(work.rules.keep)
        self.wv = KeyedVectors(corpus.words[:words], self._rows(work.model.inputs), corpus.counts[:words])
        return self

    @property
    def report_(self) -> Report:
        """How sparse the updates were and how often threads met, measured when first asked for."""
        work = self._done()
        if self._report is None:
            self._report = self._measured(work)
        return self._report

    def _measured(self, work: Work) -> Report:
        """On the first steps of an epoch: an example is a step, a parameter a row of one of the two tables.

        But the speeds are in words of text.
        """
        hand, turns, words = Hand(work), self._turns(work.text, 0), len(work.rules.keep)
        touched: list[list[int]] = []
        tokens = 0
        for chunk in turns.order:
            steps = hand.steps_of(chunk, turns.seeds[chunk])
            touched += [contexts + [words + word for word in drawn] for contexts, drawn in steps]
            tokens += int(np.diff(work.text.sentences[work.text.chunks[chunk : chunk + 2]])[0])
            if len(touched) >= SAMPLED_STEPS:
                break
        indptr = np.cumsum([0] + [len(rows) for rows in touched], dtype=np.int64)
        indices = np.fromiter(itertools.chain.from_iterable(touched), np.uint32)
        return measure(
            indptr,
            indices,
            2 * words,
            threads=self.threads_,
            model="deterministic" if self.deterministic else self.model_,
            epochs=self.history_,
            bytes_per_example=2 * 4 * work.model.width * len(indices) / max(tokens, 1),  # a row is read and written
            seed=self.seed,
        )

    def to_torch(self) -> Any:
        """An equal torch.nn.ModuleDict of two `Embedding`, "inputs" (the vectors) and "outputs": to be trained further."""
        import torch

        model = self._done().model
        make: Any = torch.nn.Embedding.from_pretrained

        def embedding(table: Any) -> Any:
            return make(torch.from_numpy(self._rows(table).copy()), freeze=False, sparse=True)

        return torch.nn.ModuleDict({"inputs": embedding(model.inputs), "outputs": embedding(model.outputs)})

    def _done(self) -> Work:
        if "_fitted" not in vars(self):
            raise ConfigurationError("this SkipGram has not been fitted; call fit() first.")
        return self._fitted

    def _frequent(self, corpus: Corpus) -> list[str]:
        """The words that occur often enough: a head of the vocabulary."""
        enough = int(np.count_nonzero(corpus.counts >= self.min_count))
        self._check(enough, corpus)
        return corpus.words[:enough]

    def _check(self, enough: int, corpus: Corpus, trains: bool = True) -> None:
        if enough < 2:
            raise ConfigurationError(
                f"{enough} of {len(corpus.words):,} different words occur at least min_count={self.min_count} times in "
                f"{len(corpus):,} words of text; word vectors need two: lower min_count, or give more text."
            )
        if trains and longest(corpus.sentences) < 2:
            raise ConfigurationError(
                f"none of the {len(corpus.sentences) - 1:,} sentences has two words; the context of a word is the rest of "
                "its sentence: give longer ones."
            )

    def _work(self, corpus: Corpus, words: int) -> Work:
        size = min(CHUNK_TOKENS, max(256, len(corpus) // 256))
        ends = np.searchsorted(corpus.sentences, np.arange(size, len(corpus) + size, size))
        chunks = np.unique(np.concatenate([[0], np.minimum(ends, len(corpus.sentences) - 1)]))
        counts = corpus.counts[:words]
        weights = np.power(counts, float(self.ns_exponent), dtype=np.float64)
        rules = Rules(self.window, self.negative, self.negatives == "per_pair" and not self.cbow,
                      keep(counts, self.sample), alias(weights, self._parts(words)))  # fmt: skip
        width = -(-self.vector_size // LANES) * LANES
        model = Model(numbers(words * width), numbers(words * width), width)
        rng = np.random.default_rng(self.seed)
        for some in np.split(self._rows(model.inputs), range(_ROWS_AT_ONCE, words, _ROWS_AT_ONCE)):
            drawn = rng.random(some.shape, np.float32)
            drawn -= np.float32(0.5)
            np.divide(drawn, np.float32(self.vector_size), out=some)
        text = Text(corpus.tokens, corpus.sentences, chunks)
        return Work(text, rules, model, sigmoid(), self.cbow)

    def _rows(self, table: Any) -> Any:
        """A flat table as rows of `vector_size`."""
        width = -(-self.vector_size // LANES) * LANES
        return table.reshape(-1, width)[:, : self.vector_size]

    def _parts(self, words: int) -> int:
        """Into how many parts the words are dealt for a schedule without conflicts: two words each, or it is no use."""
        return PARTS if self.deterministic and not self.cbow and words >= 2 * PARTS else 1

    def _turns(self, text: Text, epoch: int, schedule: str = "linear") -> Turns:
        chunks = len(text.chunks) - 1
        order = chunk_order(chunks, self.seed, epoch)
        tokens = np.diff(text.sentences[text.chunks])[order]
        total = len(text.tokens)
        before = np.cumsum(tokens) - tokens + epoch * total
        lrs = np.maximum(rate(schedule, lr=self.lr).over(epoch, before, total * self.epochs), self.min_lr)
        return Turns(order, lrs.astype(np.float32), seeds(chunks, self.seed, epoch))

    def _chosen(self, work: Work, epochs: int) -> tuple[str, int]:
        threads = thread_count(self.threads)
        if self.deterministic:
            return "shared", min(threads, self._parts(len(work.rules.keep)))
        if self.model != "auto":
            return self.model, threads
        found = chosen(work, self._turns(work.text, 0), epochs, threads)
        return found.model, found.threads
