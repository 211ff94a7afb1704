"""Those who only read a run: real runs, read on their own host and over TCP."""

from __future__ import annotations

import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from plesio.strategy import Strategy
from support import loops
from support.long_forms import but_thorough
from support.loops import sgd
from support.reading import followed, free_port, kept_checksums, seen_enough

RECIPES = [
    ps.async_sgd(),
    ps.async_sgd("plain"),
    ps.sync_sgd(),
    ps.local_sgd(2),
    ps.diloco(2),
    ps.async_local_sgd(2, fragments=2),
    ps.buffered(2),
    ps.local_sgd(2, codec="int8"),
    ps.allreduce(),
    ps.hogwild(),
]
QUICK = {"async_sgd", "allreduce"}
ROWS, STEPS_MAX = 400, 100_000


class Rated(torch.nn.Module):
    """Two tables, one of which forgets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.users = ps.Table(4, ps.RowSGD(lr=0.1), seed=3)
        self.items = ps.Table(4, ps.RowAdagrad(lr=0.1), seed=4, admit=ps.Seen(2), expire=ps.Unused(versions=30))
        self.last = torch.nn.Linear(4, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        scored: torch.Tensor = self.last(self.users(users) * (1 + self.items(items))).squeeze(-1)
        return scored


def train(
    worker: ps.Worker, steps: int = 40, pause_s: float = 0.005, folder: Path | None = None, followers: int = 0
) -> None:
    """So many steps; or until so many have seen enough."""
    model = loops.batch_norm()
    model, optimizer = worker.prepare(model, sgd(model))
    inputs, labels = loops.data()
    for step in worker.steps(steps if folder is None else STEPS_MAX):
        if folder is not None and seen_enough(folder, followers):
            worker.stop("they have seen enough")
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[step % 80 :][:16]), labels[step % 80 :][:16]).backward()
        time.sleep(pause_s)
        optimizer.step()


def rate(
    worker: ps.Worker, steps: int = 60, pause_s: float = 0.005, folder: Path | None = None, followers: int = 0
) -> None:
    """As `train`, with tables."""
    model = Rated()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for step in worker.steps(steps if folder is None else STEPS_MAX):
        if folder is not None and seen_enough(folder, followers):
            worker.stop("they have seen enough")
        ids = torch.randint(0, ROWS, (2, 16), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(*ids).square().mean().backward()
        time.sleep(pause_s)
        optimizer.step()


@pytest.mark.parametrize("strategy", but_thorough(RECIPES, QUICK), ids=lambda one: one.name)
def test_readers_see_versions_of_the_run_to_the_last_bit(strategy: Strategy, tmp_path: Path) -> None:
    """Each is one that the journal has; the last one is the run's result. Under `allreduce` the journal has means."""
    with followed(tmp_path / "seen", "", "tcp://") as (address, followers):
        done = ps.run(
            partial(train, folder=tmp_path / "seen", followers=2),
            strategy,
            workers=2,
            runs=tmp_path / "runs",
            readers=address,
        )
    known = kept_checksums(done.folder) if strategy.via.at_server and not strategy.gives_back_mean else {}
    for one in followers:
        assert one.last == done.version
        assert len(one.seen) > 3
        assert {version: known.get(version, seen) for version, seen in one.seen.items()} == one.seen
        assert one.state.keys() == done.state_dict.keys()
        assert all(torch.equal(one.state[name], tensor) for name, tensor in done.state_dict.items())


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_rows_of_tables_are_followed_with_the_weights(servers: int, tmp_path: Path) -> None:
    models: dict[int, Rated] = {}

    def load(reader: Any) -> None:
        models.setdefault(id(reader), Rated())
        reader.load(models[id(reader)])

    with followed(tmp_path, "", "tcp://", each=load) as (address, _):
        step = partial(rate, folder=tmp_path, followers=2)
        done = ps.run(step, "async_sgd", workers=2, servers=servers, readers=address)
    ids = torch.arange(ROWS)
    want = Rated()
    want.load_state_dict(done.state_dict, strict=False)
    want.users, want.items = done.tables["users"], done.tables["items"]
    assert len(models) == 2
    for model in models.values():
        with torch.no_grad():
            assert torch.equal(model(ids, ids), want(ids, ids))


def test_what_changed_since_a_version_is_the_rows_that_stepped(tmp_path: Path) -> None:
    """All that came by one after the other are the run's rows."""
    rows: dict[str, dict[int, list[float]]] = {"": {}, "tcp://": {}}
    since = dict.fromkeys(rows, -1)
    came = dict.fromkeys(rows, 0)

    def follow(reader: Any) -> None:
        scheme = "tcp://" if reader._place.far else ""
        got = reader.changed("users", since[scheme])
        since[scheme], came[scheme] = got.version, came[scheme] + len(got.ids)
        rows[scheme] |= dict(zip(got.ids.tolist(), got.vectors.tolist(), strict=True))

    with followed(tmp_path, "", "tcp://", each=follow) as (address, _):
        done = ps.run(partial(rate, folder=tmp_path, followers=2), "sync_sgd", workers=2, readers=address)
    kept = done.tables["users"].kept()
    want = dict(zip(kept["keys"].tolist(), kept["values"].tolist(), strict=True))
    assert rows == {"": want, "tcp://": want}
    assert min(came.values()) > len(want)


@pytest.mark.parametrize("codec", ["bf16", "int8", ps.strategy.answers.TopK(0.1)], ids=str)
def test_packed_differences_take_fewer_bytes_and_the_last_version_is_exact(codec: Any, tmp_path: Path) -> None:
    with followed(tmp_path, "tcp://", codec=codec) as (address, (one,)):
        step = partial(train, folder=tmp_path, followers=1)
        done = ps.run(step, "async_sgd", workers=2, readers=address)
    assert all(torch.equal(one.state[name], tensor) for name, tensor in done.state_dict.items())


def follows(worker: ps.Worker) -> None:
    """An actor beside training: a model that is never more than two versions old when it is called."""
    model = loops.mlp()
    own, optimizer = worker.prepare(model, sgd(model))
    with worker.reader() as reader:
        acting = loops.mlp()
        with reader.follow(acting, max_age=2) as following:
            for _ in worker.steps(40):
                optimizer.zero_grad()
                own(torch.ones(1, loops.FEATURES)).sum().backward()
                optimizer.step()
                before = reader.newest
                acting(torch.ones(1, loops.FEATURES))
                assert following.version >= before - 2
    worker.log(followed=float(following.version))


def test_a_model_that_follows_is_at_most_so_old() -> None:
    done = ps.run(follows, "async_sgd", workers=2, readers=True)
    assert done.version == 40
    assert all(one.metrics["followed"] > 20 for one in done.logged if "followed" in one.metrics)


def test_a_run_without_readers_and_a_simulated_one_say_so() -> None:
    def asks(worker: ps.Worker) -> None:
        worker.reader()

    with pytest.raises(ps.ConfigurationError, match="the run has no readers; start it with readers=True"):
        ps.run(asks, "sync_sgd", workers=1)
    with pytest.raises(ps.ConfigurationError, match="readers=True is for processes of this host"):
        ps.run(asks, "sync_sgd", workers=1, readers=True, engine=ps.Simulated("uniform"))


def test_a_run_that_does_not_start_listens_no_longer() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ps.ConfigurationError, match="cannot be the training function"):
        ps.run(lambda: None, "async_sgd", workers=2, readers=address)
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        pass


def test_another_token_and_a_model_of_other_shapes_are_refused(tmp_path: Path) -> None:
    refused: list[str] = []

    def look(reader: Any) -> None:
        if refused:
            return
        with pytest.raises(ps.ProofError, match="token"):
            ps.read(reader._where.rpartition(" ")[2], token=32 * "x", timeout_s=5)
        with pytest.raises(ps.ModelMismatchError, match=r"0\.weight: the run has shape"):
            reader.load(torch.nn.Sequential(torch.nn.Linear(1, 1)))
        with pytest.raises(ps.ConfigurationError, match="the run has no table 'users'"):
            reader.rows("users", [1])
        refused.append("all")

    with followed(tmp_path, "", each=look) as (address, _):
        ps.run(partial(train, folder=tmp_path, followers=1), "async_sgd", workers=2, readers=address)
    assert refused
