"""KeyedVectors: against brute force, through its file formats, and with gensim where that is installed."""

import numpy as np
import pytest

from plesio.errors import ConfigurationError
from plesio.sparse.keyed_vectors import KeyedVectors

KEYS = ["der", "die", "größe", "king", "queen", "man", "woman", "King"]


@pytest.fixture
def wv() -> KeyedVectors:
    return KeyedVectors(KEYS, np.random.default_rng(0).normal(size=(8, 5)))


def test_vectors_are_looked_up_by_key(wv) -> None:
    assert (len(wv), wv.vector_size, list(wv)) == (8, 5, KEYS)
    assert "king" in wv
    assert "kings" not in wv
    assert np.array_equal(wv["king"], wv.vectors[3])
    assert np.array_equal(wv[["king", "der"]], wv.vectors[[3, 0]])
    assert np.linalg.norm(wv.get_vector("king", norm=True)) == pytest.approx(1)
    with pytest.raises(KeyError, match="there is no vector of 'kings'"):
        wv["kings"]


def test_most_similar_equals_brute_force(wv) -> None:
    def cosine(one, other) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    units = wv.vectors / np.linalg.norm(wv.vectors, axis=1, keepdims=True)
    goal = units[3] + units[6] - units[5]
    wanted = sorted(((key, cosine(row, goal)) for key, row in zip(KEYS, units, strict=True)), key=lambda pair: -pair[1])
    wanted = [pair for pair in wanted if pair[0] not in ("king", "woman", "man")]
    found = wv.most_similar(positive=["king", "woman"], negative="man", topn=3)
    assert [key for key, _ in found] == [key for key, _ in wanted[:3]]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted[:3]], abs=1e-6)
    assert len(wv.most_similar("king", topn=100)) == 7
    assert {key for key, _ in wv.most_similar("king", restrict_vocab=2)} == {"der", "die"}
    assert wv.most_similar(positive=[wv["king"]], topn=1)[0][0] == "king"  # a vector is nobody's name
    assert wv.similarity("king", "man") == pytest.approx(cosine(wv["king"], wv["man"]))
    with pytest.raises(ConfigurationError, match="at least one key"):
        wv.most_similar()


def test_keys_can_be_given_by_index(wv) -> None:
    assert np.array_equal(wv[3], wv["king"])
    assert np.array_equal(wv[[np.int64(3), "der"]], wv.vectors[[3, 0]])
    assert wv.most_similar(3) == wv.most_similar("king") == wv.most_similar(positive=[np.int64(3)])
    assert wv.similarity(3, "man") == wv.similarity("king", "man")
    for place in (8, -1):
        with pytest.raises(KeyError, match=f"there is no vector at place {place}: places are 0 to 7"):
            wv[place]


def test_most_similar_takes_vectors_and_weights(wv) -> None:
    units = wv.vectors / np.linalg.norm(wv.vectors, axis=1, keepdims=True)
    goal = 2 * units[3] - 0.5 * units[5] + 5 * wv.vectors[0]
    cosines = units @ goal / np.linalg.norm(goal)
    asked = {"positive": [("king", 2.0), 5 * wv["der"]], "negative": [("man", 0.5)]}
    everything = wv.most_similar(**asked, topn=None)
    assert everything == pytest.approx(cosines, abs=1e-6)
    assert wv.most_similar(**asked, topn=None, restrict_vocab=3).shape == (3,)
    left = [at for at in np.argsort(-cosines) if KEYS[at] not in ("king", "man")]
    assert [key for key, _ in wv.most_similar(**asked, topn=4)] == [KEYS[at] for at in left[:4]]
    assert wv.most_similar(wv["king"], topn=2) == wv.similar_by_vector(list(wv["king"]), topn=2)
    assert wv.most_similar(wv["king"], topn=1)[0][0] == "king"
    assert wv.most_similar(wv[["king", "man"]], topn=3) == wv.most_similar([wv["king"], wv["man"]], topn=3)
    assert wv.similar_by_word("king", 3, restrict_vocab=6) == wv.most_similar("king", topn=3, restrict_vocab=6)
    assert wv.distance("king", "man") == 1 - wv.similarity("king", "man")
    for wrong in (np.zeros(4), [0.5, 1.0], [None], [["king"]], [("king",)]):
        with pytest.raises(ConfigurationError, match=r"is neither a key nor a vector of 5 numbers"):
            wv.most_similar(wrong)


def test_most_similar_matches_gensim(wv) -> None:
    gensim = pytest.importorskip("gensim.models")
    theirs = gensim.KeyedVectors(5)
    theirs.add_vectors(KEYS, wv.vectors)
    for asked in (
        {"positive": [("king", 2.0), wv["der"]], "negative": ["man"]},
        {"positive": 3},
        {"positive": wv["der"]},
        {"positive": "king", "topn": None},
    ):
        ours, known = wv.most_similar(**asked), theirs.most_similar(**asked)
        if asked.get("topn", 10) is None:
            assert ours == pytest.approx(known, abs=1e-6)
        else:
            assert [key for key, _ in ours] == [key for key, _ in known]
            assert [score for _, score in ours] == pytest.approx([score for _, score in known], abs=1e-6)


def test_get_vecattr_returns_counts(wv) -> None:
    counted = KeyedVectors(["a", "b"], np.eye(2), [7, 3])
    assert (counted.get_vecattr("a", "count"), counted.get_vecattr(1, "count")) == (7, 3)
    with pytest.raises(KeyError, match="no 'colour' of these keys"):
        counted.get_vecattr("a", "colour")
    with pytest.raises(KeyError, match="no 'count' of these keys"):
        wv.get_vecattr("king", "count")
    with pytest.raises(ConfigurationError, match=r"counts has shape \(1,\) for 2 keys"):
        KeyedVectors(["a", "b"], np.eye(2), [7])


def test_doesnt_match_finds_the_odd_word() -> None:
    wv = KeyedVectors(["a", "b", "c", "odd"], [[1, 0], [0.9, 0.1], [1, 0.1], [-1, 1]])
    assert wv.doesnt_match(["a", "b", "odd", "c"]) == "odd"
    with pytest.raises(ConfigurationError, match="at least one word"):
        wv.doesnt_match([])


def test_evaluate_word_analogies_scores_sections(tmp_path) -> None:
    places = {"king": (4, 2), "queen": (4, -2), "man": (1, 2), "woman": (1, -2), "boy": (2, 2), "girl": (2, 2.1)}
    wv = KeyedVectors(places, list(places.values()))
    questions = tmp_path / "questions.txt"
    questions.write_text(": royal\nMan King Woman Queen\nking man nobody woman\n: young\nman boy woman girl\n")
    accuracy, sections = wv.evaluate_word_analogies(questions)
    assert accuracy == 0.5
    assert [section["section"] for section in sections] == ["royal", "young", "Total accuracy"]
    assert sections[0]["correct"] == [("Man", "King", "Woman", "Queen")]
    assert sections[1]["incorrect"] == [("man", "boy", "woman", "girl")]
    assert wv.evaluate_word_analogies(questions, restrict_vocab=4)[1][-1]["incorrect"] == []
    assert wv.evaluate_word_analogies(questions, case_insensitive=False)[1][0]["correct"] == []
    questions.write_text(": bad\nking queen man\n")
    with pytest.raises(ConfigurationError, match="line 2: 'king queen man' is 3 words"):
        wv.evaluate_word_analogies(questions)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_word2vec_format_round_trips(wv, tmp_path, binary) -> None:
    wv.save_word2vec_format(tmp_path / "wv", binary=binary)
    again = KeyedVectors.load_word2vec_format(tmp_path / "wv", binary=binary)
    assert again.index_to_key == KEYS
    assert np.array_equal(again.vectors, wv.vectors)
    gensim = pytest.importorskip("gensim.models")
    theirs = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "wv"), binary=binary)
    assert theirs.index_to_key == KEYS
    assert np.array_equal(theirs.vectors, wv.vectors)


def test_reads_files_written_by_word2vec(tmp_path) -> None:
    (tmp_path / "text").write_bytes(b"2 2\nking 1.5 -2 \nqueen 1e-3 4 \n")  # word2vec.c ends lines with a blank
    row = np.array([1.5, -2], "<f4").tobytes()
    (tmp_path / "binary").write_bytes(b"2 2\nking " + row + b"queen " + row)  # gensim writes no line ends
    assert KeyedVectors.load_word2vec_format(tmp_path / "text")["queen"].tolist() == pytest.approx([1e-3, 4])
    assert KeyedVectors.load_word2vec_format(tmp_path / "binary", binary=True)["queen"].tolist() == [1.5, -2]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_truncated_files_are_refused(wv, tmp_path, binary) -> None:
    wv.save_word2vec_format(tmp_path / "wv", binary=binary)
    whole = (tmp_path / "wv").read_bytes()
    for content in (whole[:-30], whole[4:], b""):
        (tmp_path / "wv").write_bytes(content)
        with pytest.raises(ConfigurationError, match="is not in word2vec's"):
            KeyedVectors.load_word2vec_format(tmp_path / "wv", binary=binary)


@pytest.mark.parametrize("binary", [False, True])
def test_a_key_that_is_no_utf8_is_refused_or_replaced(tmp_path, binary) -> None:
    rows = [np.array([k, 2], "<f4").tobytes() if binary else b"%d 2" % k for k in range(2)]
    keys = ["\N{SNOWMAN}".encode(), b"caf\xc3"]  # the second ends within a letter
    (tmp_path / "wv").write_bytes(
        b"2 2\n" + b"".join(key + b" " + row + b"\n" for key, row in zip(keys, rows, strict=True))
    )
    with pytest.raises(ConfigurationError, match=r"the key b'caf\\xc3' is not UTF-8 .* errors='replace'"):
        KeyedVectors.load_word2vec_format(tmp_path / "wv", binary=binary)
    read = KeyedVectors.load_word2vec_format(tmp_path / "wv", binary=binary, errors="replace")
    assert read.index_to_key == ["\N{SNOWMAN}", "caf\N{REPLACEMENT CHARACTER}"]
    assert read.vectors.tolist() == [[0, 2], [1, 2]]


def test_inconsistent_keys_and_vectors_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match=r"2 keys for vectors of shape \(3, 1\)"):
        KeyedVectors(["a", "b"], np.zeros((3, 1)))
    with pytest.raises(ConfigurationError, match="occur twice"):
        KeyedVectors(["a", "a"], np.zeros((2, 1)))
    with pytest.raises(ConfigurationError, match="white space"):
        KeyedVectors(["new york"], np.zeros((1, 1))).save_word2vec_format(tmp_path / "wv")
