"""Word vectors, and what one asks of them: names and file formats as in gensim and word2vec.c.

No training, no Numba: a table of float32 rows with a name each.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError

Key = str | int | NDArray[Any]
"""A key, its index, or any vector."""
Keys = Key | Sequence[Key | tuple[Key, float]]
"""One or several, each perhaps with a weight; an array of two dimensions is several vectors."""
Question = tuple[str, ...]
_AT_ONCE = 512  # questions


class KeyedVectors:
    """A vector for each key.

    Args:
        keys: the names, most frequent first where that is known: `restrict_vocab` takes a head of them. Those
            that came with later texts follow the old ones.
        vectors: a row for each; made float32.
        counts: how often each occurred, if that is known.

    Wherever a key is asked for, its place will do: `wv[0]` is the first.

    Attributes:
        vectors: float32, keys x vector_size.
        index_to_key, key_to_index: the names in order, and the place of each.
        counts: int64, or None.

    Raises:
        ConfigurationError: if names, rows and counts are not equally many, or a name occurs twice.

    >>> wv = KeyedVectors(["king", "queen", "man", "woman"], [[2, 2], [2, -2], [1, 2], [1, -2]])
    >>> wv.most_similar(positive=["king", "woman"], negative=["man"], topn=1)[0][0]
    'queen'
    """

    def __init__(self, keys: Iterable[str], vectors: Any, counts: Any = None) -> None:
        self.index_to_key = list(keys)
        self.vectors: NDArray[np.float32] = np.ascontiguousarray(vectors, dtype=np.float32)
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.index_to_key):
            raise ConfigurationError(
                f"{len(self.index_to_key)} keys for vectors of shape {self.vectors.shape}; allowed is a row for each key."
            )
        self.counts = None if counts is None else np.array(counts, np.int64)
        if self.counts is not None and self.counts.shape != self.vectors.shape[:1]:
            raise ConfigurationError(
                f"counts has shape {self.counts.shape} for {len(self.index_to_key)} keys; allowed is a number for each key."
            )
        self.key_to_index = {key: index for index, key in enumerate(self.index_to_key)}
        if len(self.key_to_index) < len(self.index_to_key):
            raise ConfigurationError(
                f"{len(self.index_to_key) - len(self.key_to_index)} of {len(self.index_to_key)} keys occur twice; "
                "a key may occur once."
            )

    @property
    def vector_size(self) -> int:
        """Numbers in a vector."""
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.index_to_key)

    def __contains__(self, key: object) -> bool:
        return key in self.key_to_index

    def __iter__(self) -> Iterator[str]:
        return iter(self.index_to_key)

    def __getitem__(self, key: str | int | Sequence[str | int]) -> NDArray[np.float32]:
        """The vector of a key, or the rows of several."""
        places = self._index(key) if isinstance(key, str | int | np.integer) else [self._index(one) for one in key]
        found: NDArray[np.float32] = self.vectors[places]
        return found

    def get_vector(self, key: str | int, norm: bool = False) -> NDArray[np.float32]:
        """The vector of `key`, of length 1 if `norm`."""
        return _unit(self[key]) if norm else self[key]

    def get_vecattr(self, key: str | int, attr: str) -> int:
        """How often `key` occurred: `attr` is "count", the only thing kept beside a vector.

        Raises KeyError if that is not known, as of vectors read from a file.
        """
        if attr != "count" or self.counts is None:
            raise KeyError(f"there is no {attr!r} of these keys")
        return int(self.counts[self._index(key)])

    def similarity(self, one: str | int, other: str | int) -> float:
        """The cosine of the angle between two."""
        return float(self.get_vector(one, norm=True) @ self.get_vector(other, norm=True))

    def distance(self, one: str | int, other: str | int) -> float:
        """1 less their `similarity`."""
        return 1 - self.similarity(one, other)

    def most_similar(
        self,
        positive: Keys = (),
        negative: Keys = (),
        topn: int | None = 10,
        restrict_vocab: int | None = None,
    ) -> Any:
        """The keys nearest to the mean of `positive` less `negative` by cosine, the keys given left out: (key, cosine) pairs.

        Each is a key, whose vector counts with length 1, a vector as it is, or a pair of one and its weight. With `topn=None`
        it is the cosines of all, in the order of the keys.

        Raises ConfigurationError if none is given or a vector has another length, KeyError for a key that is not there.
        """
        signed = [*_weighted(positive, 1.0), *_weighted(negative, -1.0)]
        if not signed:
            raise ConfigurationError("most_similar() needs at least one key, in positive= or negative=; got none.")
        rows = np.array([weight * self._vector(key) for key, weight in signed])
        scores = _unit(self.vectors[:restrict_vocab]) @ _unit(rows.sum(axis=0))
        if topn is None:
            return scores
        given = {self._index(key) for key, _ in signed if _is_key(key)}
        best = [index for index in np.argsort(-scores, kind="stable").tolist() if index not in given][: max(topn, 0)]
        return [(self.index_to_key[index], float(scores[index])) for index in best]

    def similar_by_word(self, word: str | int, topn: int | None = 10, restrict_vocab: int | None = None) -> Any:
        """`most_similar` to one key."""
        return self.most_similar(positive=[word], topn=topn, restrict_vocab=restrict_vocab)

    def similar_by_vector(self, vector: Any, topn: int | None = 10, restrict_vocab: int | None = None) -> Any:
        """`most_similar` to a vector, no key left out."""
        return self.most_similar(positive=[np.asarray(vector)], topn=topn, restrict_vocab=restrict_vocab)

    def doesnt_match(self, words: Sequence[str]) -> str:
        """The word farthest from the mean of all."""
        if not words:
            raise ConfigurationError("doesnt_match() needs at least one word; got none.")
        rows = _unit(self[list(words)])
        return words[int(np.argmin(rows @ _unit(rows.mean(axis=0))))]

    def evaluate_word_analogies(
        self, analogies: str | os.PathLike[str], restrict_vocab: int = 300_000, case_insensitive: bool = True
    ) -> tuple[float, list[dict[str, Any]]]:
        """How many questions "a is to b as c is to d" are answered right, and which, by section.

        The file is in the format of word2vec's questions-words.txt. Questions with a word that is not among the first
        `restrict_vocab` are left out. With `case_insensitive` words are compared in capitals; of several spellings the
        most frequent is taken.

        Raises ConfigurationError for a line that is not four words.
        """
        spell = str.upper if case_insensitive else str
        head = self.index_to_key[:restrict_vocab]
        index = {spell(key): at for at, key in reversed(list(enumerate(head)))}
        units = _unit(self.vectors[: len(head)])
        allowed = np.zeros(len(head), bool)
        allowed[list(index.values())] = True
        sections: list[dict[str, Any]] = []
        for name, questions in _questions(analogies):
            known = [question for question in questions if all(spell(word) in index for word in question)]
            places = np.array([[index[spell(word)] for word in question] for question in known]).reshape(-1, 4)
            parts = [places[at : at + _AT_ONCE] for at in range(0, len(places), _AT_ONCE)]
            right = [good for part in parts for good in _answers(units, allowed, part) == part[:, 3]]
            section: dict[str, Any] = {"section": name, "correct": [], "incorrect": []}
            for question, good in zip(known, right, strict=True):
                section["correct" if good else "incorrect"].append(question)
            sections.append(section)
        correct, incorrect = (
            [one for section in sections for one in section[kind]] for kind in ("correct", "incorrect")
        )
        sections.append({"section": "Total accuracy", "correct": correct, "incorrect": incorrect})
        return len(correct) / max(len(correct) + len(incorrect), 1), sections

    def save_word2vec_format(self, fname: str | os.PathLike[str], binary: bool = False) -> None:
        """Write the vectors as word2vec.c does, as text or binary; gensim and others read it.

        Raises ConfigurationError for a key with white space in it, which the format cannot hold.
        """
        bad = next((key for key in self.index_to_key if not key or key.split() != [key]), None)
        if bad is not None:
            raise ConfigurationError(
                f"the key {bad!r} is empty or has white space; the word2vec format cannot hold it."
            )
        with open(fname, "wb") as file:
            file.write(f"{len(self)} {self.vector_size}\n".encode())
            for key, row in zip(self.index_to_key, self.vectors, strict=True):
                numbers = row.astype("<f4").tobytes() if binary else " ".join(map(str, row)).encode()
                file.write(key.encode() + b" " + numbers + b"\n")

    @classmethod
    def load_word2vec_format(
        cls, fname: str | os.PathLike[str], binary: bool = False, errors: str = "strict"
    ) -> KeyedVectors:
        """Read what word2vec.c, gensim or `save_word2vec_format` wrote.

        `errors` is what becomes of a key that is no UTF-8, as for `bytes.decode`: "strict" refuses, "replace" goes on.

        Raises ConfigurationError if it is not that: cut short, no header, a row of another length, such a key.
        """
        with open(fname, "rb") as file:
            header = file.readline().removeprefix(codecs.BOM_UTF8).split()
            try:
                count, size = (int(number) for number in header)
                rows = _binary_rows(file, count, size) if binary else _text_rows(file, count, size)
                names, vectors = zip(*rows, strict=True) if count else ((), np.zeros((0, size)))
                keys = [name.decode(errors=errors) for name in names]
            except UnicodeDecodeError as error:
                raise ConfigurationError(
                    f"{os.fspath(fname)!r}: the key {error.object!r} is not UTF-8 ({error.reason}); errors='replace' puts a sign "
                    "for what cannot be read"
                ) from error
            except (ValueError, EOFError) as error:
                raise ConfigurationError(
                    f"{os.fspath(fname)!r} is not in word2vec's {'binary' if binary else 'text'} format ({error}); "
                    "the first line is `<number of words> <vector size>`. Is binary= right?"
                ) from error
        return cls(keys, np.array(vectors))

    def _index(self, key: Any) -> int:
        if isinstance(key, int | np.integer):
            if 0 <= key < len(self):
                return int(key)
            raise KeyError(f"there is no vector at place {key}: places are 0 to {len(self) - 1}")
        try:
            return self.key_to_index[key]
        except KeyError:
            raise KeyError(f"there is no vector of {key!r}: it was not in the text, or too rare (min_count)") from None

    def _vector(self, key: Any) -> NDArray[Any]:
        """The unit vector of a key; a given vector unchanged."""
        if _is_key(key):
            return self.get_vector(key, norm=True)
        vector = np.asarray(key)
        if vector.shape != (self.vector_size,) or vector.dtype.kind not in "fiu":
            raise ConfigurationError(f"{key!r} is neither a key nor a vector of {self.vector_size} numbers.")
        return vector


def _is_key(key: object) -> bool:
    return isinstance(key, str | int | np.integer)


def _weighted(keys: Any, sign: float) -> list[tuple[Any, float]]:
    """Each key or vector, and its weight."""
    several = [keys] if _is_key(keys) or (isinstance(keys, np.ndarray) and keys.ndim == 1) else keys
    return [(one[0], sign * one[1]) if isinstance(one, tuple) and len(one) == 2 else (one, sign) for one in several]


def _unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Of length 1; a row of zeros stays one."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    units: NDArray[np.float32] = np.divide(rows, np.where(norms > 0, norms, 1), dtype=np.float32)
    return units


def _answers(units: NDArray[np.float32], allowed: NDArray[np.bool_], questions: NDArray[Any]) -> Any:
    """The d nearest to b - a + c for each question, which is none of the three."""
    a, b, c, _ = questions.T
    scores = (units[b] - units[a] + units[c]) @ units.T
    scores[:, ~allowed] = -np.inf
    np.put_along_axis(scores, questions[:, :3], -np.inf, axis=1)
    return scores.argmax(axis=1)


def _questions(path: str | os.PathLike[str]) -> Iterator[tuple[str, list[Question]]]:
    name, questions = "", list[Question]()
    with open(path, encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.startswith(":"):
                if questions:
                    yield name, questions
                name, questions = line[1:].strip(), []
            elif words := tuple(line.split()):
                if len(words) != 4:
                    raise ConfigurationError(
                        f"{os.fspath(path)!r}, line {number}: {line.strip()!r} is {len(words)} words, not four."
                    )
                questions.append(words)
    if questions:
        yield name, questions


def _text_rows(file: BinaryIO, count: int, size: int) -> Iterator[tuple[bytes, NDArray[np.float32]]]:
    for number in range(count):
        key, *numbers = file.readline().rstrip(b"\n").rstrip(b" ").split(b" ")
        if len(numbers) != size:
            raise ValueError(f"row {number + 1} of {count} has {len(numbers)} numbers, not {size}")
        yield key, np.array(numbers, np.float32)


def _binary_rows(file: BinaryIO, count: int, size: int) -> Iterator[tuple[bytes, NDArray[np.float32]]]:
    data, at = file.read(), 0
    for number in range(count):
        end = data.find(b" ", at)
        if end < 0 or len(data) < end + 1 + 4 * size:
            raise EOFError(f"it ends in row {number + 1} of {count}")
        yield data[at:end].lstrip(b"\n"), np.frombuffer(data, "<f4", size, end + 1)
        at = end + 1 + 4 * size
