"""Corpora: what is written is read, what is no text is refused."""

import itertools
import json

import numpy as np
import pytest

from plesio.errors import ConfigurationError
from plesio.sparse import corpus as module
from plesio.sparse.corpus import LONGEST, Corpus, longest, open_corpus, read_corpus, save_corpus

TEXT = [["to", "be", "or", "not", "to", "be"], [], ["that", "is", "the", "question", "to", "ask"], ("or", "so")]


def sentences(corpus: Corpus) -> list[list[str]]:
    bounds = corpus.sentences.tolist()
    return [[corpus.words[token] for token in corpus.tokens[begin:end]] for begin, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("blocks", [1, 1 << 20], ids=["block by block", "in one block"])
def test_saved_and_read_corpora_hold_the_given_sentences(tmp_path, monkeypatch, blocks) -> None:
    monkeypatch.setattr(module, "_BLOCK", blocks)
    for corpus in (read_corpus(TEXT), save_corpus(tmp_path, TEXT), open_corpus(tmp_path), read_corpus(tmp_path)):
        assert sentences(corpus) == [list(words) for words in TEXT if words]
        assert corpus.words[:3] == ["to", "be", "or"]  # by count, then as they came
        assert corpus.counts.tolist() == [3, 2, 2] + [1] * 7
        assert (len(corpus), longest(corpus.sentences)) == (14, 6)
        assert (corpus.tokens.dtype, corpus.sentences.dtype) == (np.uint32, np.int64)
        assert not corpus.tokens.flags.writeable


def test_every_kind_of_text_source_gives_the_same_corpus(tmp_path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("\n".join(" ".join(words) for words in TEXT), encoding="utf-8")
    wanted = read_corpus(TEXT)
    again = save_corpus(tmp_path / "copy", save_corpus(tmp_path / "corpus", file))
    for corpus in (read_corpus(file), read_corpus(str(file)), read_corpus(words for words in TEXT), again):
        assert sentences(corpus) == sentences(wanted)
        assert corpus.words == wanted.words
    assert read_corpus(wanted) is wanted
    assert read_corpus([np.array(["a", "b"])]).words == ["a", "b"]


def test_long_sentences_are_cut() -> None:
    corpus = read_corpus([["word"] * (2 * LONGEST + 5)])
    assert corpus.sentences.tolist() == [0, LONGEST, 2 * LONGEST, 2 * LONGEST + 5]


def test_a_byte_order_mark_is_not_part_of_a_word(tmp_path) -> None:
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfsun moon\r\nsun\r\n")
    assert read_corpus(tmp_path / "text").words == ["sun", "moon"]


def test_a_corpus_stays_until_the_new_one_is_whole(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="holds no whole corpus"):
        open_corpus(tmp_path)
    old = save_corpus(tmp_path, TEXT)

    def interrupted():
        yield ["some", "words"]
        raise KeyboardInterrupt

    for bad, error in (
        (interrupted(), KeyboardInterrupt),
        ("no-such-file", ConfigurationError),
        (["a text"], ConfigurationError),
    ):
        with pytest.raises(error):
            save_corpus(tmp_path, bad)
        assert open_corpus(tmp_path).words == old.words
    before = old.tokens.copy()
    assert save_corpus(tmp_path, [["other"]] * 3).words == ["other"]
    assert np.array_equal(old.tokens, before)  # whoever reads the old one still does
    assert len(list(tmp_path.iterdir())) == 3
    save_corpus(tmp_path, TEXT)
    np.save(tmp_path / "tokens.npy", np.zeros(3, np.uint32))
    with pytest.raises(ConfigurationError, match="3 of 14 tokens"):
        open_corpus(tmp_path)
    about = save_corpus(tmp_path, TEXT) and json.loads((tmp_path / "corpus.json").read_text())
    (tmp_path / "corpus.json").write_text(json.dumps(about | {"format": 2}))
    with pytest.raises(ConfigurationError, match="corpus of format 2"):
        open_corpus(tmp_path)
    assert not list(tmp_path.glob("*.unranked"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ([], "the corpus is empty"),
        (["a line"], r"sentence 0 is 'a line', a str"),
        ([["fine"], b"bytes"], r"sentence 1 is b'bytes', a bytes"),
        ([["fine"], 3], r"sentence 1 is 3, a int"),
        ([["fine", None]], r"the word None is a NoneType"),
        ([["fine", ["nested"]]], r"is no sentence: words are strings"),
        ("no/such/file", "there is no file or folder 'no/such/file'"),
    ],
)
def test_invalid_text_is_refused(tmp_path, text, told) -> None:
    with pytest.raises(ConfigurationError, match=told):
        read_corpus(text)
    with pytest.raises(ConfigurationError, match=told):
        save_corpus(tmp_path, text)
