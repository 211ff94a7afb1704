"""Training on data larger than the memory that a process may use: mapped rows, a corpus in a folder, mapped columns.

This file is also the program of a child process. That does a first small fit, to have everything compiled, and then
limits its private memory to what it has and an eighth of the data's size. Pages of mapped files are not private, copies are.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from plesio.sparse import HogwildClassifier, Kernel, SkipGram
from plesio.sparse.corpus import FORMAT, open_corpus
from plesio.sparse.stored_rows import open_rows, save_rows

BLOCK = 1 << 14
SMALL, LARGE = 1, 64  # blocks


class Family(NamedTuple):
    """How to write so many blocks of data into a folder, to map them, and to train on them: what is learnt."""

    write: Callable[[Path, int], None]
    open: Callable[[Path], Any]
    fit: Callable[[Any], NDArray[Any]]


def write_rows(folder: Path, blocks: int) -> None:
    """2,048 rows a block, of 100 features each; what they are alike in is a hidden weight of every feature."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=40_000)

    def block() -> tuple[Any, Any]:
        indices = rng.integers(1, 400, (2048, 100), np.int32).cumsum(axis=1)
        values = rng.random(indices.size, np.float32)
        rows = sparse.csr_array((values, indices.ravel(), np.arange(0, indices.size + 1, 100)), shape=(2048, 40_000))
        return rows, rows @ hidden > 0

    save_rows(folder, (block() for _ in range(blocks)))


def fit_rows(data: Any, **settings: Any) -> NDArray[Any]:
    model = HogwildClassifier("log_loss", max_iter=2, tol=None, random_state=0, threads=1, **settings).fit(*data)
    return np.append(model.coef_, model.intercept_)


def fit_watched_rows(data: Any) -> NDArray[Any]:
    """A tenth of the rows is held out."""
    return fit_rows(data, early_stopping=True)


def write_corpus(folder: Path, blocks: int) -> None:
    """A thousand words, equally frequent, in sentences of eight."""
    rng = np.random.default_rng(0)
    words, length = 1000, 250_000
    folder.mkdir()
    tokens = np.lib.format.open_memmap(folder / "tokens.npy", "w+", np.uint32, (blocks * length,))
    for begin in range(0, len(tokens), length):
        tokens[begin : begin + length] = rng.permutation(np.arange(length, dtype=np.uint32) % words)
    np.save(folder / "sentences.npy", np.arange(0, len(tokens) + 1, 8))
    counts = [len(tokens) // words] * words
    about = {"format": FORMAT, "tokens": len(tokens), "words": [f"w{word}" for word in range(words)], "counts": counts}
    (folder / "corpus.json").write_text(json.dumps(about))


def fit_corpus(corpus: Any) -> NDArray[Any]:
    """Most words are left out, for the time it takes."""
    return SkipGram(vector_size=16, min_count=1, sample=1e-6, epochs=1, threads=1).fit(corpus).wv.vectors


def write_columns(folder: Path, blocks: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (blocks * BLOCK, 16))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (blocks * BLOCK,))
    for begin in range(0, len(y), BLOCK):
        x[begin : begin + BLOCK] = rng.random((BLOCK, 16), np.float32)
        y[begin : begin + BLOCK] = x[begin : begin + BLOCK].sum(axis=1)


def open_columns(folder: Path) -> Any:
    return tuple(np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))


def least_squares(parameters, example, lr):
    x, y = example
    error = -y
    for j in range(len(x)):
        error += x[j] * parameters.w[j]
    for j in range(len(x)):
        parameters.w[j] -= lr * error * x[j]
    return error * error


def fit_columns(data: Any) -> NDArray[Any]:
    weights = Kernel(least_squares, {"w": np.zeros(16)}, lr=0.01, epochs=2, threads=1).fit(data).parameters["w"]
    return np.array(weights)


FAMILIES = {
    "linear": Family(write_rows, open_rows, fit_rows),
    "early stopping": Family(write_rows, open_rows, fit_watched_rows),
    "skipgram": Family(write_corpus, open_corpus, fit_corpus),
    "kernel": Family(write_columns, open_columns, fit_columns),
}


def in_memory(data: Any) -> Any:
    """The same with its arrays read. Rows go on being called mapped, which says in what order they are best dealt."""
    if isinstance(data, np.ndarray):
        copy = np.array(data)
        copy.flags.writeable = False
        return copy
    if isinstance(data, tuple):
        return tuple(map(in_memory, data))
    arrays = [field.name for field in fields(data) if isinstance(getattr(data, field.name), np.ndarray)]
    return replace(data, **{name: in_memory(getattr(data, name)) for name in arrays})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path)  # too large to be kept with the folders of the last runs


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not limit a process's private memory")
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_data_larger_than_memory_gives_the_same_bits(name: str, folder: Path) -> None:
    family = FAMILIES[name]
    family.write(folder / "small", SMALL)
    family.write(folder / "large", LARGE)
    child = subprocess.run([sys.executable, __file__, name, str(folder)], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == ["mapped: done", "read into memory: MemoryError"]
    learnt = np.load(folder / "learnt.npy")
    assert np.isfinite(learnt).all()
    assert np.array_equal(learnt, family.fit(in_memory(family.open(folder / "large"))))


def main(name: str, folder: Path) -> None:
    """The child: learn from the mapped data, then fail to learn from the same data in memory."""
    import resource

    family = FAMILIES[name]
    family.fit(family.open(folder / "small"))
    data = family.open(folder / "large")
    size = sum(path.stat().st_size for path in (folder / "large").iterdir())
    private = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(private.split()[1]) * 1024 + size // 8, most))
    np.save(folder / "learnt.npy", family.fit(data))
    print("mapped: done")
    try:
        family.fit(in_memory(data))
    except MemoryError:
        print("read into memory: MemoryError")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
