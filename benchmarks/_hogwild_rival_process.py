"""One rival, in the rivals' own virtualenv: read arrays, fit, time the fit alone, write what the comparison needs.

.venv-rivals/bin/python benchmarks/_hogwild_rival_process.py '{"name": ..., "data": ..., "answer": ..., "settings": {}}'
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]


# --- Vowpal Wabbit -------------------------------------------------------------------------------------------------------


def vowpal_wabbit(
    data: Path, arrays: Arrays, *, loss: str, epochs: int, lr: float, power_t: float, classic: bool
) -> Arrays:
    """Train from its binary cache, which is made before the time is taken; predict the test rows."""
    train, test = data.with_suffix(".train.vw"), data.with_suffix(".test.vw")
    bits = max(18, int(np.ceil(np.log2(int(arrays["features"]) + 1))))
    common = f"--quiet -b {bits} --holdout_off"
    cache, model, answers = (data.with_suffix(f".vw.{name}") for name in ("cache", "model", "answers"))
    if not cache.exists():
        write_vw(arrays, "train_", train)
        write_vw(arrays, "test_", test)
        run_vw(f"{common} -d {train} --cache_file {cache}")
    update = "--sgd" if classic else ""
    settings = f"--loss_function {loss} -l {lr} --power_t {power_t} {update} --passes {epochs}"
    start_s = time.perf_counter()
    run_vw(f"{common} {settings} --cache_file {cache} -f {model}")
    seconds = time.perf_counter() - start_s
    run_vw(f"--quiet -t -i {model} -d {test} -p {answers}")
    predicted = np.array([float(line.split()[0]) for line in answers.read_text().splitlines()])
    return {"seconds": seconds, "accuracy": np.mean((predicted > 0) == (arrays["test_labels"] > 0))}


def write_vw(arrays: Arrays, part: str, path: Path) -> None:
    """Vowpal Wabbit's text format; a feature that is a number is its own hash."""
    indptr, indices = arrays[part + "indptr"].tolist(), arrays[part + "indices"].tolist()
    values, labels = arrays[part + "values"].tolist(), arrays[part + "labels"].tolist()
    with path.open("w") as file:
        for row, label in enumerate(labels):
            at = slice(indptr[row], indptr[row + 1])
            features = [f"{index}:{value:.6g}" for index, value in zip(indices[at], values[at], strict=True)]
            file.write(f"{label:.0f} | {' '.join(features)}\n")


def run_vw(arguments: str) -> None:
    from vowpalwabbit import pyvw

    pyvw.Workspace(arguments).finish()


# --- LIBMF ---------------------------------------------------------------------------------------------------------------


class Problem(ctypes.Structure):
    _fields_ = [("m", ctypes.c_int), ("n", ctypes.c_int), ("nnz", ctypes.c_longlong), ("nodes", ctypes.c_void_p)]


class Parameter(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("fun", "k", "threads", "bins", "iterations")),
        *((name, ctypes.c_float) for name in ("l1_p", "l2_p", "l1_q", "l2_q", "eta")),
        *((name, ctypes.c_bool) for name in ("nonnegative", "quiet", "copy_data")),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("fun", "m", "n", "k")),
        ("b", ctypes.c_float),
        ("left", ctypes.POINTER(ctypes.c_float)),
        ("right", ctypes.POINTER(ctypes.c_float)),
    ]


NODE = np.dtype([("u", np.int32), ("v", np.int32), ("r", np.float32)])


def libmf(data: Path, arrays: Arrays, *, factors: int, epochs: int, lr: float, l2: float, threads: int) -> Arrays:
    """LIBMF's `mf_train`, called directly: its Python package would carry indices through float32."""
    library = ctypes.CDLL(str(next(Path(np.__file__).parents[1].glob("libmf*.so"))))
    library.mf_get_default_param.restype = Parameter
    library.mf_train.restype = ctypes.POINTER(Model)
    library.mf_train.argtypes = [ctypes.POINTER(Problem), Parameter]
    nodes = np.empty(len(arrays["users"]), NODE)
    nodes["u"], nodes["v"], nodes["r"] = arrays["users"], arrays["items"], arrays["values"]
    rows, columns = (int(size) for size in arrays["shape"])
    problem = Problem(rows, columns, len(nodes), nodes.ctypes.data)
    setting = library.mf_get_default_param()
    setting.k, setting.threads, setting.iterations, setting.eta = factors, threads, epochs, lr
    setting.l2_p = setting.l2_q = l2
    setting.quiet = True
    start_s = time.perf_counter()
    model = library.mf_train(ctypes.byref(problem), setting).contents
    seconds = time.perf_counter() - start_s
    left = np.ctypeslib.as_array(model.left, (rows, model.k))
    right = np.ctypeslib.as_array(model.right, (columns, model.k))
    # Rows never trained on are not numbers there; its own prediction takes the mean for them.
    predicted = np.einsum("nk,nk->n", left[arrays["test_users"]], right[arrays["test_items"]])
    predicted = np.where(np.isnan(predicted), model.b, predicted)
    return {"seconds": seconds, "rmse": np.sqrt(np.mean((predicted - arrays["test_values"]) ** 2))}


# --- implicit and LightFM: Bayesian personalised ranking -----------------------------------------------------------------


def implicit_bpr(
    data: Path, arrays: Arrays, *, factors: int, epochs: int, lr: float, l2: float, threads: int
) -> Arrays:
    from implicit.bpr import BayesianPersonalizedRanking

    model = BayesianPersonalizedRanking(
        factors=factors, iterations=epochs, learning_rate=lr, regularization=l2, num_threads=threads, random_state=0
    )
    seen = matrix(arrays)
    start_s = time.perf_counter()
    model.fit(seen, show_progress=False)
    return {"seconds": time.perf_counter() - start_s, "left": model.user_factors, "right": model.item_factors}


def lightfm_bpr(data: Path, arrays: Arrays, *, factors: int, epochs: int, lr: float, l2: float, threads: int) -> Arrays:
    from lightfm import LightFM

    model = LightFM(no_components=factors, loss="bpr", learning_rate=lr, item_alpha=l2, user_alpha=l2, random_state=0)
    seen = matrix(arrays).tocoo()
    start_s = time.perf_counter()
    model.fit(seen, epochs=epochs, num_threads=threads)
    seconds = time.perf_counter() - start_s
    ones = np.ones((len(model.user_embeddings), 1), np.float32)
    left = np.hstack([model.user_embeddings, ones])
    return {"seconds": seconds, "left": left, "right": np.hstack([model.item_embeddings, model.item_biases[:, None]])}


def matrix(arrays: Arrays) -> Any:
    from scipy.sparse import csr_matrix

    ones = np.ones(len(arrays["users"]), np.float32)
    return csr_matrix((ones, (arrays["users"], arrays["items"])), shape=tuple(arrays["shape"]))


# --- gensim --------------------------------------------------------------------------------------------------------------


def gensim(data: Path, arrays: Arrays, *, part: str, epochs: int, threads: int, common: dict[str, Any]) -> Arrays:
    """Train on the file `part` with a vocabulary that is ready: the time is the training's, by `corpus_file`, its fastest way."""
    from gensim.models import Word2Vec

    text = Path(part).read_text()
    model = Word2Vec(workers=threads, epochs=epochs, seed=1, sg=1, hs=0, **common)
    model.build_vocab_from_freq(dict(zip(arrays["words"].tolist(), arrays["counts"].tolist(), strict=True)))
    start_s = time.perf_counter()
    model.train(corpus_file=part, total_examples=text.count("\n"), total_words=len(text.split()), epochs=epochs)
    seconds = time.perf_counter() - start_s
    return {"seconds": seconds, "words": np.array(model.wv.index_to_key), "vectors": model.wv.vectors}


RIVALS: dict[str, Callable[..., Arrays]] = {
    each.__name__: each for each in (vowpal_wabbit, libmf, implicit_bpr, lightfm_bpr, gensim)
}


def main(order: str) -> None:
    told = json.loads(order)
    data = Path(told["data"])
    with np.load(data) as file:
        arrays = dict(file)
    np.savez(told["answer"], **RIVALS[told["name"]](data, arrays, **told["settings"]))


if __name__ == "__main__":
    main(sys.argv[1])
