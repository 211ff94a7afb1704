"""Word vectors, and what one asks of them: names and file formats as in gensim and word2vec.c.

No training, no Numba: a table of float32 rows with a name each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError

Keys = str | Sequence[str | NDArray[Any]]
Question = tuple[str, ...]
_AT_ONCE = 512  # questions


class KeyedVectors:
    """A vector for each key.

    Args:
        keys: the names, most frequent first where that is known: `restrict_vocab` takes a head of them.
        vectors: a row for each; made float32.

    Attributes:
        vectors: float32, keys x vector_size.
        index_to_key, key_to_index: the names in order, and the place of each.

    Raises:
        ConfigurationError: if names and rows are not equally many, or a name occurs twice.

    >>> wv = KeyedVectors(["king", "queen", "man", "woman"], [[2, 2], [2, -2], [1, 2], [1, -2]])
    >>> wv.most_similar(positive=["king", "woman"], negative=["man"], topn=1)[0][0]
    'queen'
    """

    def __init__(self, keys: Iterable[str], vectors: Any) -> None:
        self.index_to_key = list(keys)
        self.vectors: NDArray[np.float32] = np.ascontiguousarray(vectors, dtype=np.float32)
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.index_to_key):
            raise ConfigurationError(
                f"{len(self.index_to_key)} keys for vectors of shape {self.vectors.shape}; allowed is a row for each key."
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

    def __getitem__(self, key: str | Sequence[str]) -> NDArray[np.float32]:
        """The vector of a key, or the rows of several."""
        places = self._index(key) if isinstance(key, str) else [self._index(one) for one in key]
        found: NDArray[np.float32] = self.vectors[places]
        return found

    def get_vector(self, key: str, norm: bool = False) -> NDArray[np.float32]:
        """The vector of `key`, of length 1 if `norm`."""
        return _unit(self[key]) if norm else self[key]

    def similarity(self, one: str, other: str) -> float:
        """The cosine of the angle between two."""
        return float(self.get_vector(one, norm=True) @ self.get_vector(other, norm=True))

    def most_similar(
        self,
        positive: Keys = (),
        negative: Keys = (),
        topn: int = 10,
        restrict_vocab: int | None = None,
    ) -> list[tuple[str, float]]:
        """The keys nearest to the mean of `positive` less `negative` by cosine, the keys given left out.

        Raises ConfigurationError if none is given, KeyError for a key that is not there.
        """
        near, far = _listed(positive), _listed(negative)
        if not near and not far:
            raise ConfigurationError("most_similar() needs at least one key, in positive= or negative=; got none.")
        signed = [(key, 1.0) for key in near] + [(key, -1.0) for key in far]
        rows = np.array([sign * _unit(self[key] if isinstance(key, str) else np.asarray(key)) for key, sign in signed])
        scores = _unit(self.vectors[:restrict_vocab]) @ _unit(rows.mean(axis=0))
        given = {self._index(key) for key, _ in signed if isinstance(key, str)}
        best = [index for index in np.argsort(-scores, kind="stable").tolist() if index not in given][: max(topn, 0)]
        return [(self.index_to_key[index], float(scores[index])) for index in best]

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
        correct, incorrect = list[Question](), list[Question]()
        for name, questions in _questions(analogies):
            known = [question for question in questions if all(spell(word) in index for word in question)]
            places = np.array([[index[spell(word)] for word in question] for question in known]).reshape(-1, 4)
            parts = [places[at : at + _AT_ONCE] for at in range(0, len(places), _AT_ONCE)]
            right = [good for part in parts for good in _answers(units, allowed, part) == part[:, 3]]
            section: dict[str, Any] = {"section": name, "correct": [], "incorrect": []}
            for question, good in zip(known, right, strict=True):
                section["correct" if good else "incorrect"].append(question)
            sections.append(section)
            correct, incorrect = correct + section["correct"], incorrect + section["incorrect"]
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
    def load_word2vec_format(cls, fname: str | os.PathLike[str], binary: bool = False) -> KeyedVectors:
        """Read what word2vec.c, gensim or `save_word2vec_format` wrote.

        Raises ConfigurationError if it is not that: cut short, no header, a row of another length.
        """
        with open(fname, "rb") as file:
            header = file.readline().split()
            try:
                count, size = (int(number) for number in header)
                rows = _binary_rows(file, count, size) if binary else _text_rows(file, count, size)
                keys, vectors = zip(*rows, strict=True) if count else ((), np.zeros((0, size)))
            except (ValueError, EOFError) as error:
                raise ConfigurationError(
                    f"{os.fspath(fname)!r} is not in word2vec's {'binary' if binary else 'text'} format ({error}); "
                    "the first line is `<number of words> <vector size>`. Is binary= right?"
                ) from error
        return cls(keys, np.array(vectors))

    def _index(self, key: str) -> int:
        try:
            return self.key_to_index[key]
        except KeyError:
            raise KeyError(f"there is no vector of {key!r}: it was not in the text, or too rare (min_count)") from None


def _listed(keys: Keys) -> list[str | NDArray[Any]]:
    return [keys] if isinstance(keys, str) else list(keys)


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
    with open(path, encoding="utf-8") as lines:
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


def _text_rows(file: BinaryIO, count: int, size: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for number in range(count):
        key, *numbers = file.readline().decode().rstrip("\n").rstrip(" ").split(" ")
        if len(numbers) != size:
            raise ValueError(f"row {number + 1} of {count} has {len(numbers)} numbers, not {size}")
        yield key, np.array(numbers, np.float32)


def _binary_rows(file: BinaryIO, count: int, size: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    data, at = file.read(), 0
    for number in range(count):
        end = data.find(b" ", at)
        if end < 0 or len(data) < end + 1 + 4 * size:
            raise EOFError(f"it ends in row {number + 1} of {count}")
        key = data[at:end].decode().lstrip("\n")
        yield key, np.frombuffer(data, "<f4", size, end + 1)
        at = end + 1 + 4 * size
