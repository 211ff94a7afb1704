"""SkipGram against a plain Python loop, closed forms and planted structure, and users' mistakes."""

import math

import numpy as np
import pytest

from plesio.errors import ConfigurationError
from plesio.sparse import choosing
from plesio.sparse.choosing import Chosen
from plesio.sparse.corpus import Corpus, read_corpus, save_corpus
from plesio.sparse.epochs import DivergedError
from plesio.sparse.skipgram import SkipGram, tables, training
from plesio.sparse.skipgram.deal import WHOLE, Share
from plesio.sparse.skipgram.step import Model, Scratch, Steps, learn
from plesio.sparse.skipgram.training import Hand

f32 = np.float32
MASK, STAR, LANES = 2**64 - 1, 2685821657736338717, 16
SMALL = {"vector_size": 20, "min_count": 1, "sample": 1e-2, "epochs": 2, "threads": 1}


def text(sentences: int = 120, words: int = 40, seed: int = 0) -> list[list[str]]:
    """Sentences of 1 to 15 words, drawn as unevenly as in a language."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 16, sentences)
    return [[f"w{word}" for word in rng.integers(0, words, length) * rng.random(length) // 1] for length in lengths]


def topics(sentences: int = 4000, seed: int = 0) -> list[list[str]]:
    """Four topics of eight words each; a sentence keeps to one, and shares function words with all."""
    rng = np.random.default_rng(seed)
    drawn = [(rng.integers(4), rng.integers(0, 8, 12)) for _ in range(sentences)]
    return [[f"t{topic}_{word}" if word < 6 else f"and{word}" for word in words] for topic, words in drawn]


def purity(wv) -> float:
    """The share of a topic's words among each topic word's five nearest."""
    own = [word for word in wv if word.startswith("t")]
    hits = [near[:2] == word[:2] for word in own for near, _ in wv.most_similar(word, topn=5)]
    return sum(hits) / len(hits)


class PlainLoop:
    """What `SkipGram` does with one thread, word by word in Python; only sums of sixteen are numpy's."""

    def __init__(self, skipgram: SkipGram, corpus: Corpus) -> None:
        self.work = skipgram._work(corpus, len(skipgram._frequent(corpus)))
        self.skipgram = skipgram
        self.inputs = [row.copy() for row in self.work.model.inputs.reshape(-1, self.work.model.width)]
        self.outputs = [row.copy() for row in self.work.model.outputs.reshape(-1, self.work.model.width)]

    def run(self) -> "PlainLoop":
        text = self.work.text
        for epoch in range(self.skipgram.epochs):
            turns = self.skipgram._turns(text, epoch)
            for turn, chunk in enumerate(turns.order):
                for contexts, targets in self.steps(int(chunk), int(turns.seeds[chunk])):
                    self.learn(contexts, targets, turns.lrs[turn])
        return self

    def steps(self, chunk: int, seed: int):
        window, negative, per_pair, keep, _ = self.work.rules
        text = self.work.text
        self.noise, state = (seed ^ STAR) | 1, seed
        for sentence in range(text.chunks[chunk], text.chunks[chunk + 1]):
            kept = []
            for word in text.tokens[text.sentences[sentence] : text.sentences[sentence + 1]].tolist():
                if word < len(keep):
                    state, draw = following(state)
                    if draw >> 32 <= keep[word]:
                        kept.append((word, 1 + ((draw & 0xFFFFFFFF) * window >> 32)))
            for i, (word, reach) in enumerate(kept):
                near = [kept[j][0] for j in range(max(0, i - reach), min(len(kept), i + reach + 1)) if j != i]
                for contexts in [[one] for one in near] if per_pair else [near] if near else []:
                    yield contexts, [word, *(self.draw(word) for _ in range(negative))]

    def draw(self, word: int) -> int:
        other = word
        while other == word:
            self.noise, draw = following(self.noise)
            other = (draw >> 32) * len(self.work.rules.alias) >> 32
            entry = int(self.work.rules.alias[other])
            if draw & 0xFFFFFFFF > entry >> 32:
                other = entry & 0xFFFFFFFF
        return other

    def learn(self, contexts: list[int], targets: list[int], lr: np.float32) -> None:
        hidden = [self.inputs[word].copy() for word in contexts]
        if self.skipgram.cbow:
            mean = np.zeros_like(hidden[0])
            for row in hidden:
                mean = mean + f32(1) / f32(len(hidden)) * row
            hidden = [mean]
        slopes = [[self.slope(h, self.outputs[word], t == 0, lr) for t, word in enumerate(targets)] for h in hidden]
        errors = [np.zeros_like(h) for h in hidden]
        for first in range(0, len(targets), 2):  # by twos, so that what is drawn twice is read again
            before = {t: self.outputs[targets[t]].copy() for t in range(first, min(first + 2, len(targets)))}
            for t, y in before.items():
                change = np.zeros_like(y)
                for row, h in enumerate(hidden):
                    errors[row] = errors[row] + slopes[row][t] * y
                    change = change + slopes[row][t] * h
                self.outputs[targets[t]] = self.outputs[targets[t]] + change
        for row, word in enumerate(contexts):
            self.inputs[word] = self.inputs[word] + errors[0 if self.skipgram.cbow else row]

    def slope(self, h, y, right: bool, lr: np.float32) -> np.float32:
        sums = np.zeros(LANES, f32)
        for at in range(0, len(h), LANES):
            sums = sums + h[at : at + LANES] * y[at : at + LANES]
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        score = sums[0]
        if score >= 6:
            probability = f32(1)
        elif score > -6:
            probability = self.work.sigmoid[int((score + f32(6)) * f32(1000 / 12))]
        else:
            probability = f32(0)
        return lr * (f32(right) - probability)


def following(state: int) -> tuple[int, int]:
    state ^= state >> 12
    state ^= state << 25 & MASK
    state ^= state >> 27
    return state, state * STAR & MASK


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "settings",
    [{}, {"negative": 4}, {"negatives": "per_pair"}, {"cbow": True}, {"window": 2, "lr": 0.5}],
    ids=["shared", "odd targets", "per pair", "cbow", "steep"],
)
def test_one_thread_equals_a_plain_python_loop_bit_for_bit(settings) -> None:
    skipgram = SkipGram(**SMALL | settings)
    corpus = read_corpus(text())
    plain = PlainLoop(skipgram, corpus).run()
    skipgram.fit(corpus)
    assert np.array_equal(skipgram._fitted.model.inputs, np.concatenate(plain.inputs))
    assert np.array_equal(skipgram._fitted.model.outputs, np.concatenate(plain.outputs))
    assert np.abs(plain.outputs[0]).max() > 0


def test_a_step_equals_the_gradient_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    inputs, outputs = rng.normal(size=(4, 16)) / 4, rng.normal(size=(4, 16)) / 4
    contexts, targets, lr = [0, 2], [1, 3, 2, 1], 0.1  # 1 is there again to make them even
    signs = np.array([1, -1, -1, 0])
    scores = inputs[contexts] @ outputs[targets].T
    slopes = lr * signs / (1 + np.exp(signs * scores))  # label − σ(s) is ±σ(∓s)
    wanted_in, wanted_out = inputs.copy(), outputs.copy()
    wanted_in[contexts] += slopes @ outputs[targets]
    np.add.at(wanted_out, targets, slopes.T @ inputs[contexts])
    model = Model(inputs.astype(f32).ravel(), outputs.astype(f32).ravel(), 16)
    steps = Steps(np.array(contexts, np.uint32), np.array([0, 2]), np.array(targets, np.uint32))
    scratch = Scratch(np.empty(32, f32), np.empty(32, f32), np.empty(8, f32))
    loss, pairs = learn(model, steps, 1, 4, 2, False, f32(lr), tables.sigmoid(), scratch)
    assert np.allclose(
        model.inputs.reshape(4, 16), wanted_in, atol=lr * 0.003
    )  # the table's cells are 0.012 wide, σ's slope 1/4
    assert np.allclose(model.outputs.reshape(4, 16), wanted_out, atol=lr * 0.003)
    assert np.abs(wanted_in - inputs).max() > lr * 0.1
    assert pairs == 2
    assert loss == pytest.approx(np.log1p(np.exp(-signs[:3] * scores[:, :3])).sum(), rel=1e-6)


@pytest.mark.filterwarnings("ignore:threads=:UserWarning")
@pytest.mark.parametrize(
    "settings", [{}, {"negatives": "per_pair"}, {"cbow": True}], ids=["shared", "per pair", "cbow"]
)
def test_deterministic_bits_are_independent_of_threads(settings) -> None:
    fits = [
        SkipGram(**SMALL | settings | {"threads": threads, "deterministic": True}).fit(text())
        for threads in (1, 2, 3, 4)
    ]
    for other in fits[1:]:
        assert np.array_equal(fits[0].wv.vectors, other.wv.vectors)
        assert fits[0].history_[-1].loss == other.history_[-1].loss


@pytest.mark.thorough
def test_the_shares_of_a_chunk_partition_its_pairs() -> None:
    skipgram = SkipGram(**SMALL, deterministic=True)
    corpus = read_corpus(text())
    hand = Hand(skipgram._work(corpus, len(corpus.words)))
    shares = [Share(4, context, word) for context in range(4) for word in range(4)]

    def pairs(share: Share) -> list[tuple[int, int]]:
        steps = hand.steps_of(0, np.uint64(7), share)
        assert all({target % share.parts for target in targets} == {share.word} for _, targets in steps)
        assert all(targets[0] not in targets[1:] for _, targets in steps)
        return [(context, targets[0]) for contexts, targets in steps for context in contexts]

    dealt = [pair for share in shares for pair in pairs(share)]
    assert len(dealt) > 100
    assert sorted(dealt) == sorted(pairs(WHOLE))


def test_one_thread_is_reproducible_by_seed() -> None:
    one, same, other = (SkipGram(**SMALL, seed=seed).fit(text()).wv.vectors for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "settings",
    [{}, {"negatives": "per_pair"}, {"cbow": True, "lr": 0.1}, {"deterministic": True}],
    ids=["shared", "per pair", "cbow", "deterministic"],
)
def test_two_threads_find_planted_topics(settings) -> None:
    settings = {"vector_size": 24, "threads": 2, "model": "shared", "epochs": 8, "sample": 0} | settings
    skipgram = SkipGram(**settings).fit(topics())
    assert purity(skipgram.wv) > 0.95
    losses = [epoch.loss for epoch in skipgram.history_]
    assert losses[-1] < 0.5 * 6 * math.log(2)  # a half of where vectors of zeros are
    assert {sum(epoch.examples_by_thread) for epoch in skipgram.history_} == {48_000}
    assert skipgram.history_[-1].lr < 0.01 * skipgram.lr


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "counts",
    [[500, 300, 90, 60, 30, 15, 5], [5, 15, 30, 300], [7, 7, 7, 7], [1, 2, 2, 2, 3], [10**9, 1, 1, 1]],
    ids=["falling", "rising", "equal", "some just the mean", "steep"],
)
def test_alias_tables_draw_in_proportion_to_weights(counts, parts) -> None:
    weights = np.array(counts) ** 0.75
    drawn = np.zeros(len(counts))
    for place, entry in enumerate(tables.alias(weights, parts).tolist()):
        share = (entry >> 32) / (2**32 - 1)
        drawn[place] += share
        drawn[entry & 0xFFFFFFFF] += 1 - share
    for part in range(parts):
        own = slice(part, None, parts)
        assert np.allclose(drawn[own] / drawn[own].sum(), weights[own] / weights[own].sum())


def test_subsampling_matches_word2vec() -> None:
    counts = np.array([500, 300, 90, 60, 30, 15, 5])
    shares = counts / counts.sum()
    wanted = np.minimum(1, np.sqrt(0.01 / shares) + 0.01 / shares)
    assert np.allclose(tables.keep(counts, 0.01) / 2**32, wanted)
    assert (tables.keep(counts, 0.0) == 2**32 - 1).all()


@pytest.mark.thorough
def test_subsampling_and_window_widths_follow_the_tables() -> None:
    corpus = read_corpus([["a", "b"] * 5000, ["c"] * 100])
    skipgram = SkipGram(vector_size=1, min_count=1, sample=0.05, window=4)
    hand = Hand(skipgram._work(corpus, 3))
    chunks = range(len(hand._work.text.chunks) - 1)
    steps = [step for chunk in chunks for step in hand.steps_of(chunk, np.uint64(chunk + 1))]
    of_a = [contexts for contexts, targets in steps if targets[0] == 0]
    share = 5000 / 10_100
    assert len(of_a) / 5000 == pytest.approx(math.sqrt(0.05 / share) + 0.05 / share, rel=0.1)
    assert np.mean([len(contexts) for contexts in of_a]) == pytest.approx(5, rel=0.05)  # twice the mean of 1 to 4


def test_every_kind_of_text_source_gives_the_same_vectors(tmp_path) -> None:
    sentences = text()
    (tmp_path / "text.txt").write_text("\n".join(" ".join(words) for words in sentences))
    save_corpus(tmp_path / "corpus", sentences)
    wanted = SkipGram(**SMALL).fit(sentences).wv
    for source in (tmp_path / "text.txt", str(tmp_path / "corpus"), iter(sentences)):
        wv = SkipGram(**SMALL).fit(source).wv
        assert wv.index_to_key == wanted.index_to_key
        assert np.array_equal(wv.vectors, wanted.vectors)


def test_words_below_min_count_are_dropped() -> None:
    wv = SkipGram(**SMALL | {"min_count": 2}).fit([["often", "rare", "too"], ["often", "too"]] * 1 + [["too"]]).wv
    assert wv.index_to_key == ["too", "often"]


@pytest.mark.slow  # Kernel's thousand fits go through the same pool
def test_a_thousand_fits_visit_every_word() -> None:
    corpus = read_corpus(text(sentences=50))
    for seed in range(1000):
        skipgram = SkipGram(vector_size=4, min_count=1, epochs=1, threads=2, model="shared", seed=seed).fit(corpus)
        assert sum(skipgram.history_[0].examples_by_thread) == len(corpus)
        assert np.isfinite(skipgram.wv.vectors).all()


def test_an_exception_in_one_thread_ends_the_fit(monkeypatch) -> None:
    do = Hand.do

    def failing(hand: Hand, chunk: int, *rest):
        if chunk == 1:
            raise KeyboardInterrupt
        return do(hand, chunk, *rest)

    settings = SMALL | {"threads": 2, "model": "shared"}
    monkeypatch.setattr(Hand, "do", failing)
    with pytest.raises(KeyboardInterrupt):
        SkipGram(**settings).fit(text())
    monkeypatch.setattr(Hand, "do", do)
    assert len(SkipGram(**settings).fit(text()).history_) == 2


def test_trials_leave_the_model_unchanged_and_short_fits_skip_them(monkeypatch) -> None:
    skipgram = SkipGram(**SMALL | {"threads": 2})
    assert skipgram.fit(text()).threads_ == 1
    monkeypatch.setattr(choosing, "WORTH_A_TRIAL_S", 0.0)
    corpus = read_corpus(text())
    work = skipgram._work(corpus, len(corpus.words))
    before = work.model.inputs.copy()
    chosen = training.chosen(work, skipgram._turns(work.text, 0), 1, 2)
    assert set(chosen.examples_per_s) == {("shared", 1), ("shared", 2)}
    assert chosen.threads in (1, 2)
    assert np.array_equal(work.model.inputs, before)
    assert not work.model.outputs.any()
    monkeypatch.setattr(choosing, "SMALL_MODEL_BYTES", 0)  # too large for a copy
    assert training.chosen(work, skipgram._turns(work.text, 0), 1, 2) == Chosen("shared", 2, {})


def test_initial_vectors_are_independent_of_the_block_size(monkeypatch) -> None:
    corpus = read_corpus(text())
    work = SkipGram(**SMALL)._work(corpus, len(corpus.words))
    monkeypatch.setattr("plesio.sparse.skipgram.estimator._ROWS_AT_ONCE", 3)
    again = SkipGram(**SMALL)._work(corpus, len(corpus.words))
    assert np.array_equal(work.model.inputs, again.model.inputs)
    assert work.model.inputs.any()


def test_the_progress_bar_names_the_model(capsys) -> None:
    SkipGram(**SMALL, cbow=True, progress=True).fit(text())
    assert "cbow" in capsys.readouterr().out


def test_divergence_error_names_the_learning_rate() -> None:
    with pytest.raises(DivergedError, match=r"learning rate .*Try a learning rate of"):
        SkipGram(**SMALL | {"lr": 1e6, "epochs": 20}).fit(text())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"vector_size": 0}, r"vector_size=0: allowed is a whole number of at least 1"),
        ({"epochs": 1.5}, r"epochs=1\.5"),
        ({"sample": -1.0}, r"sample=-1\.0"),
        ({"lr": math.nan}, r"lr=nan"),
        ({"model": "replica"}, r"unknown model 'replica'; known: auto, shared"),
        ({"negatives": "share"}, r"did you mean 'shared'"),
        ({"seed": -1}, r"seed=-1"),
        ({"min_lr": 0.1}, r"min_lr=0\.1 is above lr=0\.025"),
        ({"ns_exponent": math.inf}, r"ns_exponent=inf"),
    ],
)
def test_invalid_settings_are_refused(settings, told) -> None:
    with pytest.raises(ConfigurationError, match=told):
        SkipGram(**settings)


@pytest.mark.parametrize(
    ("sentences", "told"),
    [
        ([], "the corpus is empty"),
        ([[], []], "the corpus is empty"),
        (
            [["a", "b", "c", "b"]],
            r"0 of 3 different words occur at least min_count=5 times .*lower min_count",
        ),
        ([["a"] * 10], r"1 of 1 different words .*give more text"),
        ([["one"], ["two"]] * 5, "none of the 10 sentences has two words"),
        ("a text instead of lists", "there is no file or folder"),
        (["a sentence", "not split"], r"sentence 0 is 'a sentence', a str; a sentence is a list of words"),
        ([[1, 2, 3]], r"the word 1 is a int; words are strings"),
    ],
)
def test_invalid_text_is_refused(sentences, told) -> None:
    with pytest.raises(ConfigurationError, match=told):
        SkipGram(threads=1).fit(sentences)


def test_vectors_carry_word_counts() -> None:
    wv = SkipGram(**SMALL | {"min_count": 2}).fit([["a", "b"], ["a", "b", "a", "c"]]).wv
    assert [(word, wv.get_vecattr(word, "count")) for word in wv] == [("a", 3), ("b", 2)]


@pytest.mark.thorough
def test_report_and_to_torch_describe_the_fit() -> None:
    skipgram = SkipGram(**SMALL | {"threads": 2, "model": "shared"}).fit(text())
    report = skipgram.report_
    assert report is skipgram.report_
    assert (report.threads, report.model, report.parameters) == (2, "shared", 2 * len(skipgram.wv))
    assert 0 < report.delta <= 1
    assert report.omega <= 2 * 5 + 1 + 5
    assert "examples/s" in str(report)
    module = skipgram.to_torch()
    assert np.array_equal(module["inputs"].weight.detach().numpy(), skipgram.wv.vectors)
    assert module["outputs"].weight.shape == (len(skipgram.wv), 20)
    with pytest.raises(ConfigurationError, match="has not been fitted"):
        _ = SkipGram().report_
