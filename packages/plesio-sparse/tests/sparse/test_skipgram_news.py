"""New words in word vectors: counts, places, tables and vectors after each text."""

import copy
import math
import pickle

import numpy as np
import pytest

from plesio.errors import ConfigurationError
from plesio.sparse.corpus import read_corpus, save_corpus
from plesio.sparse.epochs import DivergedError
from plesio.sparse.keyed_vectors import KeyedVectors
from plesio.sparse.skipgram import SkipGram, tables
from plesio.sparse.skipgram.vocabulary import Vocabulary
from sparse.test_skipgram import PlainLoop, purity, text, topics

SMALL = {"vector_size": 20, "min_count": 3, "sample": 1e-2, "epochs": 2, "threads": 1}
OLD = [["sun", "moon", "star", "sun", "rare"], ["moon", "sun", "star"]] * 3
NEW = [["comet", "sun", "comet", "once"], ["rare", "comet", "moon"]]


def counted(skipgram: SkipGram) -> dict[str, int]:
    return {word: skipgram.wv.get_vecattr(word, "count") for word in skipgram.wv}


def frequent(*texts: list[list[str]], least: int = 3) -> dict[str, int]:
    words = [word for one in texts for sentence in one for word in sentence]
    return {word: words.count(word) for word in words if words.count(word) >= least}


@pytest.mark.parametrize("vector_size", [16, 20])
def test_new_words_come_after_the_old_whose_vectors_and_places_stay(vector_size) -> None:
    skipgram = SkipGram(**SMALL | {"vector_size": vector_size, "sample": 0}).fit(OLD)
    before, outputs = skipgram.wv, skipgram.to_torch()["outputs"].weight.detach().numpy()
    vectors = before.vectors.copy()
    assert skipgram.build_vocab(NEW, update=True) is skipgram
    assert skipgram.wv.index_to_key == ["sun", "moon", "star", "rare", "comet"][: len(skipgram.wv)]
    assert counted(skipgram) == frequent(OLD, NEW)
    assert np.array_equal(skipgram.wv.vectors[:4], vectors)
    assert 0 < np.abs(skipgram.wv.vectors[4]).max() <= 0.5 / vector_size
    assert np.array_equal(skipgram.to_torch()["outputs"].weight.detach().numpy()[:4], outputs)
    assert not skipgram.to_torch()["outputs"].weight[4].any()
    for _ in range(2):
        fresh = skipgram.wv["comet"]
        skipgram.partial_fit(NEW)
        assert counted(skipgram) == frequent(OLD, NEW)  # not counted again
        assert not np.array_equal(skipgram.wv["comet"], fresh)
    assert np.array_equal(before.vectors, vectors)  # those given away before
    assert not np.array_equal(skipgram.wv.vectors[:4], vectors)


def test_min_count_is_for_the_sum_over_all_texts() -> None:
    texts = [[["a", "b", "a", "b", "a", "b", f"w{k % 4}"]] for k in range(12)]
    skipgram = SkipGram(**SMALL).partial_fit(texts[0])
    for k in range(1, 12):
        skipgram.partial_fit([*texts[k], ["only", "here"][: 1 + k % 2]])
        assert counted(skipgram) == frequent(*texts[: k + 1], [["only"]] * k + [["here"]] * ((k + 1) // 2))
    assert skipgram.wv.index_to_key[:2] == ["a", "b"]
    assert [epoch.number for epoch in skipgram.history_] == list(range(12))
    skipgram.min_count = 1  # also for words of texts before
    skipgram.build_vocab([["now", "a"]], update=True)
    assert "now" in skipgram.wv


def test_negatives_and_subsampling_go_by_all_counts() -> None:
    skipgram = SkipGram(**SMALL).fit(OLD).partial_fit(NEW)
    counts = np.array(list(frequent(OLD, NEW).values()))
    by_row = np.array([frequent(OLD, NEW)[word] for word in skipgram.wv])
    rules = skipgram._fitted.rules
    assert sorted(counts) == sorted(by_row)
    assert np.array_equal(rules.keep, tables.keep(by_row, 1e-2))
    assert np.array_equal(rules.alias, tables.alias(by_row**0.75, 1))


@pytest.mark.parametrize("settings", [{}, {"cbow": True}, {"negatives": "per_pair"}], ids=str)
def test_partial_fit_equals_a_plain_python_loop_bit_for_bit(settings) -> None:
    skipgram = SkipGram(**SMALL | settings).fit(text())
    twin = copy.deepcopy(skipgram)
    news = [[f"w{word.removeprefix('w')}" if word != "w3" else "new" for word in words] for words in text(seed=5)]
    corpus, work, _ = twin._grown(news)
    plain = PlainLoop.__new__(PlainLoop)
    plain.work, plain.skipgram = work, twin
    plain.inputs, plain.outputs = (list(table.reshape(-1, 32).copy()) for table in work.model[:2])
    turns = twin._turns(work.text, 2, "constant")
    for chunk in turns.order:
        for contexts, targets in plain.steps(int(chunk), int(turns.seeds[chunk])):
            plain.learn(contexts, targets, np.float32(twin.lr))
    skipgram.partial_fit(news)
    assert np.array_equal(skipgram._fitted.model.inputs, np.concatenate(plain.inputs))
    assert np.array_equal(skipgram._fitted.model.outputs, np.concatenate(plain.outputs))
    assert skipgram.history_[-1].lr == pytest.approx(twin.lr)
    assert sum(skipgram.history_[-1].examples_by_thread) == len(corpus)


def test_the_first_partial_fit_numbers_words_as_fit_does() -> None:
    one, other = SkipGram(**SMALL).partial_fit(text()), SkipGram(**SMALL).build_vocab(text())
    fitted = SkipGram(**SMALL | {"epochs": 1, "lr": 0.025, "min_lr": 0.025}).fit(text())
    assert one.wv.index_to_key == other.wv.index_to_key == fitted.wv.index_to_key
    assert np.array_equal(one.wv.vectors, fitted.wv.vectors)
    assert other.history_ == []
    assert np.array_equal(other.partial_fit(text()).wv.vectors, one.wv.vectors)


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [{"model": "shared"}, {"deterministic": True}], ids=str)
def test_new_topics_are_found_and_old_ones_stay(settings) -> None:
    everything = topics()
    early = [words for words in everything if not any(word.startswith("t3") for word in words)]
    late = [words for words in everything if any(word.startswith("t3") for word in words)]
    skipgram = SkipGram(vector_size=24, epochs=8, sample=0, threads=2, **settings).fit(early)
    assert not any(word.startswith("t3") for word in skipgram.wv)
    news = late + early[:1000]
    skipgram.build_vocab(news, update=True)
    for _ in range(10):
        skipgram.partial_fit(news)
    assert sum(word.startswith("t3") for word in skipgram.wv) == 6
    assert purity(skipgram.wv) > 0.9
    assert skipgram.wv.get_vecattr("t3_0", "count") == sum(words.count("t3_0") for words in late)


@pytest.mark.filterwarnings("ignore:threads=:UserWarning")
def test_deterministic_news_have_the_same_bits_for_any_threads() -> None:
    found = {
        SkipGram(**SMALL | {"threads": threads, "deterministic": True})
        .fit(text())
        .partial_fit([*text(seed=3), ["x", "w1"] * 5])
        .wv.vectors.tobytes()
        for threads in (1, 2, 3)
    }
    assert len(found) == 1


@pytest.mark.thorough
def test_pickled_and_copied_models_go_on_alike(tmp_path) -> None:
    save_corpus(tmp_path / "news", NEW)
    skipgram = SkipGram(**SMALL).fit(OLD)
    models = [pickle.loads(pickle.dumps(skipgram)), copy.deepcopy(skipgram), skipgram]
    for one, news in zip(models, [NEW, tmp_path / "news", iter(NEW)], strict=True):
        one.partial_fit(news)
    again = pickle.loads(pickle.dumps(models[0]))
    for one in models:
        assert np.array_equal(one.wv.vectors, again.wv.vectors)
        assert counted(one) == frequent(OLD, NEW)
    assert again.report_.parameters == 2 * len(again.wv)
    kept = SkipGram(**SMALL, checkpoint=tmp_path / "kept").fit(OLD).partial_fit(NEW)
    assert SkipGram(**SMALL, resume=tmp_path / "kept").fit(OLD).history_ == kept.history_[:-1]
    assert counted(again.partial_fit(NEW)) == frequent(OLD, NEW, NEW)


def test_vectors_that_the_user_changed_count() -> None:
    skipgram = SkipGram(**SMALL).fit(OLD)
    skipgram.wv.vectors[1] = 7
    assert (skipgram.build_vocab(NEW, update=True).wv["moon"] == 7).all()
    skipgram.wv = KeyedVectors(["sun", "moon"], np.zeros((2, 20)))
    with pytest.raises(
        ConfigurationError, match=r"wv has 2 words and vectors of 20 numbers; allowed are the words learnt \(5\)"
    ):
        skipgram.partial_fit(NEW)
    other = SkipGram(**SMALL).fit(OLD)
    other.vector_size = 24
    with pytest.raises(ConfigurationError, match="vector_size=24"):
        other.partial_fit(NEW)


@pytest.mark.parametrize("news", [[], [["one"], ["two"]], "no such file", [["a", 1]], ["not split"]], ids=str)
def test_bad_news_leave_the_model_as_it_was(news) -> None:
    skipgram = SkipGram(**SMALL).fit(OLD)
    before = pickle.dumps(skipgram)
    for call in (skipgram.partial_fit, lambda given: skipgram.build_vocab(given, update=True)):
        if news != [["one"], ["two"]] or call == skipgram.partial_fit:
            with pytest.raises(ConfigurationError):
                call(news)
    assert pickle.dumps(skipgram) == before


def test_build_vocab_takes_a_list_of_words_as_sentences_of_one() -> None:
    skipgram = SkipGram(**SMALL).fit(OLD).build_vocab([["python"]] * 3, update=True)
    assert skipgram.wv.get_vecattr("python", "count") == 3
    with pytest.raises(ConfigurationError, match="none of the 3 sentences has two words"):
        skipgram.partial_fit([["python"]] * 3)


def test_an_error_while_learning_leaves_the_model_as_it_was() -> None:
    skipgram = SkipGram(**SMALL).fit(OLD)
    vectors, history = skipgram.wv.vectors.copy(), list(skipgram.history_)
    skipgram.callbacks = [lambda epoch: 1 / 0]
    with pytest.raises(ZeroDivisionError):
        skipgram.partial_fit(NEW)
    skipgram.callbacks, skipgram.lr = (), 1e38
    with pytest.raises(DivergedError):
        skipgram.partial_fit(text() + OLD * 20)
    assert np.array_equal(skipgram.wv.vectors, vectors)
    assert skipgram.history_ == history
    assert counted(skipgram) == frequent(OLD)


def test_build_vocab_says_whether_there_is_a_vocabulary() -> None:
    with pytest.raises(ConfigurationError, match=r"update=True\), but there is none to update"):
        SkipGram(**SMALL).build_vocab(OLD, update=True)
    with pytest.raises(ConfigurationError, match="there is a vocabulary: update=True adds to it"):
        SkipGram(**SMALL).fit(OLD).build_vocab(NEW)
    with pytest.raises(ConfigurationError, match="1 of 4 different words occur"):
        SkipGram(**SMALL | {"min_count": 9}).partial_fit(OLD)


def test_words_without_a_vector_are_left_out_of_the_steps() -> None:
    skipgram = SkipGram(**SMALL).fit(OLD)
    before = skipgram.wv.vectors.copy()
    skipgram.partial_fit([["p", "q"], ["r", "s"]])
    assert np.array_equal(skipgram.wv.vectors, before)
    assert skipgram.history_[-1].loss is None
    assert not math.isnan(skipgram.partial_fit([["p", "q"], ["r", "p", "sun", "moon", "p"]]).history_[-1].loss)
    assert counted(skipgram)["p"] == 4


def test_a_vocabulary_is_never_changed() -> None:
    first = Vocabulary().plus(read_corpus(OLD), 3)
    kept = copy.deepcopy(first)
    second = first.plus(read_corpus(NEW), 3)
    assert (first.row_of, first.counts.tolist(), first.rare) == (kept.row_of, kept.counts.tolist(), kept.rare)
    assert second.counts.sum() + sum(second.rare.values()) == sum(map(len, OLD + NEW))
    assert second.number(read_corpus(NEW)).tokens[:3].tolist() == [second.row_of[word] for word in NEW[0][:3]]
