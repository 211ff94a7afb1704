"""Every Python block of the docs is run, with what its page takes for granted. Elsewhere: those of start.md and the README
in test_docs.py and test_readme.py, those of ray.md by `make test-ray`."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from starlette.applications import Starlette

import plesio as ps
from integration.test_docs import DOCS, blocks_of
from integration.test_reading import rate
from plesio.sparse import MatrixFactorization, SkipGram
from support import loops
from support.programs import PYTHON
from support.reading import free_port

SIMULATED = ps.Simulated(ps.Cluster.preset("uniform", 2))
SIMULATED_SITES = ps.Simulated(ps.Cluster.preset("uniform", 3))
RUN_ELSEWHERE = {"start", "ray", "local-steps"}
TAKES_LONG = {
    "auto",
    "convert",
    "failures",
    "federated",
    "fine-tuning",
    "flower",
    "index",
    "islands",
    "keras",
    "lightning",
    "reading",
}
Names = dict[str, Any]


def train(worker: ps.Worker) -> None:
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    inputs, labels = loops.data(8)
    for _ in range(5):
        optimizer.zero_grad()
        loops.loss_of(model, inputs, labels).backward()
        optimizer.step()


def by_clients(worker: ps.Worker, **settings: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(400, 4), torch.randint(2, (400,)))
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clients = ps.Clients(data, [[k] for k in range(400)], per_round=10, rounds=1, batch_size=1, **settings)
    model, optimizer, clients = worker.prepare(model, optimizer, clients)
    for client in clients:
        for inputs, labels in client:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def execute(code: str, names: Names) -> Names:
    exec(compile(code, "page", "exec"), names)
    return names


def nothing(code: str) -> None:
    execute(code, {"ps": ps})


def actors(code: str) -> None:
    """What learners do; examples/actors.py has what actors do, too."""
    names = execute(code.replace("10_000", "2"), {"Policy": partial(torch.nn.Linear, 4, 1), "loss_of": loss_of_policy})
    for _ in range(33):
        names["queue"].put(names["UNROLL"], version=0)
    run = ps.run(names["train"], ps.async_sgd(), workers=2, engine=SIMULATED)
    assert len(names["queue"]) == 1
    assert run.logged[-1].metrics["queue/age_max"] <= 1


def loss_of_policy(policy: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (policy(batch["observations"])[..., 0] - batch["rewards"]).square().mean()


def failures(code: str) -> None:
    if "print(half.samples" in code:
        names = execute(code, {"__name__": "page"})
        assert (names["half"].samples, names["rest"].samples) == (600, 600)
        return
    if "class Numbers" in code:
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            execute(code, {"__name__": "page"})
        begun = told.getvalue().split("0 [32, 34, 36, 38]")
        assert len(begun) == 3  # given out before the stop, but not folded; and at first after it
        return
    if "import tempfile" in code:  # the two days are in test_docs.py
        compile(code, "page", "exec")
        return
    if 'data="new"' in code:
        yesterday = ps.run(
            train, ps.async_sgd(), workers=4, engine=ps.Simulated("uniform"), runs="runs", checkpoint=ps.Checkpoint()
        )
        execute(code, {"ps": ps, "train": train, "yesterday": yesterday})
        return
    first, *others = code.strip().splitlines()
    names = execute(first, {"ps": ps, "train": train})
    if not others:
        assert names["run"].version == 20
        return
    (second,) = others
    folder = names["run"].folder
    execute(second.replace("runs/20261121-101530-async_sgd", str(folder)), names)
    assert names["run"].folder != folder


def federated(code: str) -> None:
    if "secrets" in code or "scaffold" in code:
        kept = partial(by_clients, state="keep" if "scaffold" in code else None)
        assert execute(code, {"ps": ps, "train": kept})["run"].version == 1
        return
    if "SecureSums" in code:
        nothing(code)
        return
    if "charges" in code:
        phones = execute(code, {"ps": ps, "dataset": range(400), "split": [[k] for k in range(400)]})["phones"]
        assert {k % 24 for k in phones.drawn_at(0, 0, begun_s=12 * 3600.0)[0]} == {13, 14, 15, 16}
        return
    if "on_round" in code:
        names = {"ps": ps, "train": by_clients, "test_inputs": torch.randn(8, 4), "test_labels": torch.arange(8) % 2}
        run = execute(code, names)["run"]
        assert (run.version, [one.version for one in run.history]) == (1, [1])
        return
    few = code.replace("rounds=60", "rounds=2").replace("rounds=3", "rounds=2")
    dataset = torch.utils.data.TensorDataset(torch.randn(400, 4), torch.arange(400) % 4)
    dataset.targets = dataset.tensors[1]  # as torchvision's have
    names = {"build": lambda: torch.nn.Linear(4, 4), "dataset": dataset, "ps": ps, "torch": torch}
    assert execute(few, names)["run"].version == 2


def flower(code: str) -> None:
    if "ps.join" in code:
        site = execute(code, {"__name__": "page"})["site"]
        assert ps.run(site, ps.fedavg(secure=ps.SecureSums(2, 0.5)), workers=3, engine=SIMULATED_SITES).version == 20
        return
    run = execute(code, {"__name__": "__main__"})["run"]
    assert run.version == (6 if "on_round" in code else 20)
    if "on_round" in code:
        assert {*run.returned[0]} == {*range(20)}


def loop(code: str) -> None:
    def around(worker: ps.Worker) -> None:
        model = torch.nn.Linear(4, 2)
        data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
        names = {
            "worker": worker,
            "EPOCHS": 1,
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "loader": torch.utils.data.DataLoader(data, batch_size=8),
            "OneCycleLR": torch.optim.lr_scheduler.OneCycleLR,
        }
        execute(code, names)
        for inputs, labels in names["loader"]:
            names["optimizer"].zero_grad()
            torch.nn.functional.cross_entropy(names["model"](inputs), labels).backward()
            names["optimizer"].step()
            names["scheduler"].step()

    assert ps.run(around, "sync_sgd", workers=2, engine=SIMULATED).steps == 4


class Pruned(Exception):
    """In place of Optuna's."""


class Trial:
    """In place of Optuna's: prunes at its second report."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def suggest_float(self, *_: Any, **__: Any) -> float:
        return 0.01

    def report(self, _: float, step: int) -> None:
        self.steps.append(step)

    def should_prune(self) -> bool:
        return len(self.steps) == 2


def watching(code: str) -> None:
    trial = Trial()
    stands_in: dict[str, Any] = {
        "optuna": types.SimpleNamespace(TrialPruned=Pruned),
        "first": types.SimpleNamespace(evaluate=lambda _: {"accuracy": 0.5}, train=lambda worker, lr: train(worker)),
    }
    with mock.patch.dict(sys.modules, stands_in):
        simulated = code.replace("workers=2", 'workers=2, engine=ps.Simulated("uniform")').replace(
            "Steps(50)", "Steps(2)"
        )
        names = execute(simulated, {"__name__": "page"})
        with pytest.raises(Pruned):
            names["objective"](trial)
    assert trial.steps == [1, 2]


def machines(code: str) -> None:
    if "watch" in code:
        execute(code, {"ps": ps, "train": train})
    else:  # what torchrun starts is in test_readme.py
        compile(code, "page", "exec")


def phases(code: str) -> None:
    assert execute(code, {"ps": ps, "train": train})["run"].version == 5


def reading(code: str) -> None:
    """The page's first block is a run. The others go on beside it, or one with tables, in a thread."""
    if "evaluate(net)" in code:
        return  # the command that takes this file is in test_evaluating_elsewhere.py
    first, *_ = blocks_of(DOCS / "reading.md")
    address = f"127.0.0.1:{free_port()}"
    code, first = (one.replace("127.0.0.1:7171", address).replace("seconds=60", "seconds=1") for one in (code, first))
    raised: list[BaseException] = []

    def read() -> None:
        try:
            execute(code, {})
        except BaseException as error:
            raised.append(error)

    sys.modules["train"] = cast(types.ModuleType, types.SimpleNamespace(**execute(first, {"__name__": "page"})))
    beside = threading.Thread(target=read if code != first else lambda: None)
    beside.start()
    try:
        if "users" in code:
            ps.run(partial(rate, steps=400), "async_sgd", workers=2, readers=address)
        else:
            as_program(first)
    finally:
        beside.join(60)
        del sys.modules["train"]
    assert (beside.is_alive(), raised) == (False, [])


def auto(code: str) -> None:
    assert (
        execute(code, {"ps": ps, "train": train})["run"].incidents[0].what.startswith("the run chooses from sync_sgd")
    )


def after_a_fit(code: str) -> None:
    """Of models that are fitted, on ratings of films and a text."""
    films = ["Alien", "Brazil", "Cube"] * 20
    rated = {"users": [f"user {k // 3}" for k in range(60)], "items": films, "ratings": np.arange(60) % 5 + 1.0}
    text = [["the", "king", "rules", "the", "land"]] * 200
    model = MatrixFactorization(factors=2, epochs=2).fit(**rated)
    skipgram = SkipGram(vector_size=4).fit(text)
    news = [["the", "queen", "rules"]] * 200
    execute(code, {"model": model, "skipgram": skipgram, "news": news, "trust": np.ones(60), **rated})


def sparse(code: str) -> None:
    if "fold_in" in code:
        after_a_fit(code)
        return
    random = np.random.default_rng(0)
    Path("text.txt").write_text("the king rules the land\n" * 200)
    Path("corpus.txt").write_text("the king rules the land\n" * 200)
    texts, labels = ["good one", "bad one"] * 50, np.array([1, 0] * 50)
    execute(
        code,
        {
            "x": scipy.sparse.random(200, 30, 0.3, format="csr", random_state=0),
            "y": random.integers(0, 2, 200),
            "users": ["ada", "bob"] * 100,
            "items": random.integers(0, 20, 200),
            "ratings": random.random(200),
            "vectorizer": HashingVectorizer(n_features=64),
            "pieces": [(texts, labels), (texts, labels)],
        },
    )


def serving(code: str) -> None:
    """Without the run: what is asked of it is answered here."""
    if "ps.run" in code:
        execute(code.replace('readers="10.0.0.1:7171"', 'engine=ps.Simulated("uniform")'), {"ps": ps, "train": train})
        return
    if "httpx" in code:
        answer = types.SimpleNamespace(content=np.arange(6, dtype="<f4").tobytes())
        names = execute(code, {"np": np, "httpx": types.SimpleNamespace(post=lambda url, content, headers: answer)})
        assert names["vectors"].tolist() == [[0, 1, 2], [3, 4, 5]]
        return
    kept = types.SimpleNamespace(tables=("users",), rows=lambda table, ids: (1, torch.zeros(1, 3), ids > 0))
    reader = types.SimpleNamespace(keep=lambda every_s: kept)
    read = types.SimpleNamespace(read=lambda address: reader, ids_of=ps.ids_of)
    app = execute(code, {"ps": read, "app": Starlette()})["app"]
    assert [one.path for one in app.routes] == ["/embeddings"]


def tables(code: str) -> None:
    first, *_ = blocks_of(DOCS / "tables.md")
    execute(code if code == first else first + code, {"__name__": "page"})


def as_program(code: str) -> None:
    """A whole script, as the pages show them; what another library's looks like is marked ```py, and is not run."""
    execute(code, {"__name__": "__main__"})


def in_process(code: str) -> None:
    done = subprocess.run([*PYTHON, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def keras(code: str) -> None:
    """Its backend is chosen where it is first imported."""
    if find_spec("keras") is None:
        pytest.skip("needs Keras")
    in_process(code)


HOW: dict[str, Callable[[str], None]] = {
    "actors": actors,
    "algorithm": nothing,
    "api": nothing,
    "auto": auto,
    "convert": in_process,
    "failures": failures,
    "federated": federated,
    "flower": flower,
    "hogwild": sparse,
    "index": in_process,
    "keras": keras,
    "loop": loop,
    "machines": machines,
    "phases": phases,
    "reading": reading,
    "serving": serving,
    "sparse": sparse,
    "tables": tables,
    "watching": watching,
}
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("coming/*.md"))]
BLOCKS = [(page.stem, number, code) for page in PAGES for number, code in enumerate(blocks_of(page))]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("page", "code"),
    [
        pytest.param(page, code, marks=pytest.mark.thorough if page in TAKES_LONG else ())
        for page, _, code in BLOCKS
        if page not in RUN_ELSEWHERE
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_code_of_a_page_runs(page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    HOW.get(page, as_program)(code)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page",
    [DOCS / "local-steps.md", DOCS / "tables.md", *sorted(DOCS.glob("strategies/*.md"))],
    ids=lambda page: page.stem,
)
@pytest.mark.filterwarnings("ignore")
def test_the_example_prints_what_the_page_shows(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Time is virtual, so the figures are those of any machine."""
    shown = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert shown
    for code, printed in shown:
        exec(compile(code, page.name, "exec"), {"__name__": "page"})
        assert capsys.readouterr().out == printed
