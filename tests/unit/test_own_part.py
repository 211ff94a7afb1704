"""What of a model is shared, by names; and what clients keep, as files."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.attachments import Halves
from plesio.attachments.turns import Turning
from plesio.errors import CheckpointError, ConfigurationError
from plesio.transport.client_states import BEGIN, ClientStates, keep
from plesio.worker.clients.kept import KeptByClients
from plesio.worker.own_part import OwnPart


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 4)
        self.tied = self.head


def own(share: Any, of: list[str] | None = None) -> set[str]:
    model = Net()
    held = [one for name, one in model.named_parameters() if of is None or name in of]
    part = OwnPart.of(model, torch.optim.SGD(held, lr=0.1), share)
    return set(part.tensors) if part is not None else set()


NORM = {"body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}
HEAD = {"head.weight", "head.bias"}
BODY = {"body.0.weight", "body.0.bias"}


@pytest.mark.parametrize(
    ("share", "left"),
    [
        ("body", HEAD),
        (["body.0", "head", "tied"], NORM),
        (["body.0.*", "head*", "tied*"], NORM),
        (["body.0.weight"], NORM | HEAD | {"body.0.bias"}),
        (("body.?", "head.*", "tied.*"), set()),
        (lambda name, tensor: tensor.dim() < 2, {"body.0.weight", "head.weight"}),
        ("*", set()),
    ],
)
def test_names_modules_patterns_and_functions_say_what_is_shared(share: Any, left: set[str]) -> None:
    assert own(share) == left


@pytest.mark.parametrize(
    ("share", "words"),
    [
        ("bodi", "prepare(share='bodi'): no parameter or buffer has that name; the model has body.0.weight"),
        (["body", "body.weight"], "did you mean 'body."),
        ("head", "head.weight and tied.weight are one tensor, and only head.weight is shared"),
        (7, "share=...) has 7: it takes names"),
        ([], "nothing that the optimizer moves is shared"),
        ("body.1.running_mean", "nothing that the optimizer moves is shared"),
    ],
)
def test_what_cannot_be_shared_so_is_refused(share: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        own(share)
    assert words in str(caught.value)


def test_what_the_optimizer_does_not_hold_cannot_be_all_that_travels() -> None:
    with pytest.raises(ConfigurationError, match="nothing that the optimizer moves"):
        own("body", of=sorted(HEAD))


def test_clients_have_alike_what_no_optimizer_holds_and_sites_do_not_send_it() -> None:
    model = Net()
    optimizer = torch.optim.SGD([*model.body[0].parameters(), *model.head.parameters()], lr=0.1)
    clients, site = (OwnPart.of(model, optimizer, "body.0", clients=one) for one in (True, False))
    assert clients is not None
    assert site is not None
    assert set(clients.tensors) == HEAD | {"body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}
    assert set(site.tensors) == HEAD | NORM


def test_another_part_is_told_from_this_one() -> None:
    model = Net()
    part = OwnPart.of(model, torch.optim.SGD(model.parameters(), lr=0.1), "body")
    assert part is not None
    before = part.copied()
    nn.init.zeros_(model.head.weight)
    part.take(before)
    assert torch.equal(model.head.weight, before["head.weight"])
    with pytest.raises(ConfigurationError, match=r"kept has head.weight \[2, 4\], and .* has head.weight \[4, 4\]"):
        part.take(before | {"head.weight": torch.ones(2, 4)})
    with pytest.raises(ConfigurationError, match="kept has no head"):
        part.take({"head.weight": before["head.weight"]})


def test_a_buffer_that_a_forward_pass_replaces_is_the_same_one() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mean", torch.zeros(2))
    part = OwnPart.of(model, torch.optim.SGD(model.parameters(), lr=0.1), ["weight", "bias"])
    assert part is not None
    before = part.copied()
    model.mean = model.mean + 1
    assert torch.equal(part.copied()["mean"], torch.ones(2))
    model.mean = model.mean * torch.nan
    assert not part.is_finite()
    part.take(before)
    assert torch.equal(model.mean, torch.zeros(2))


# Files


def written(states: ClientStates, **clients: bytes) -> str:
    coming = states.coming()
    for name, data in clients.items():
        states.put(coming, int(name[1:]), data)
    return coming


def test_a_client_has_what_was_counted_by_the_version_that_is_asked_for(tmp_path: Path) -> None:
    states = ClientStates(tmp_path / "clients")
    first, lost = written(states, c3=b"a", c4=b"b"), written(states, c3=b"never")
    assert states.get(3, 9) is None
    states.count(first, 2, oldest=1)
    states.drop(lost)
    late = written(states, c3=b"c")
    states.count(late, 5, oldest=2)
    states.count(late, 5, oldest=2)  # done again
    assert [states.get(3, version) for version in (1, 2, 4, 5, 6)] == [None, b"a", b"a", b"c", b"c"]
    states.count(written(states, c3=b"d"), 6, oldest=5)
    assert sorted(os.listdir(tmp_path / "clients" / "3")) == ["5", "6"], "nobody asks for version 2 any more"
    assert states.get(4, 6) == b"b"
    assert not os.listdir(tmp_path / "clients" / ".coming")


def test_a_checkpoint_keeps_the_newest(tmp_path: Path) -> None:
    states, again = ClientStates(tmp_path / "a"), ClientStates(tmp_path / "b")
    assert states.begin(b"all") == b"all" == states.begin(b"other")
    states.count(written(states, c3=b"a", c4=b"b"), 2, oldest=2)
    states.count(written(states, c3=b"c"), 3, oldest=3)
    found, saved = states.newest(), tmp_path / "version-3"
    assert found.keys() == {"3", "4", BEGIN}
    saved.mkdir()
    keep(found, saved)
    states.count(written(states, c3=b"later"), 4, oldest=4)
    again.restore(saved, 3, 3)
    assert (again.get(3, 3), again.get(4, 3), again.begin(b"x")) == (b"c", b"b", b"all")
    (saved / "clients" / "4").unlink()
    with pytest.raises(CheckpointError, match="has 2 files of what clients keep, and is to have 3"):
        ClientStates(tmp_path / "c").restore(saved, 3, 3)


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """NFS leaves `.nfs0000...` where a file is removed that somebody has open; file browsers leave `.DS_Store`."""
    states, saved = ClientStates(tmp_path / "a"), tmp_path / "version-2"
    first = written(states, c3=b"a")
    homes = [tmp_path / "a", tmp_path / "a" / ".coming" / first, tmp_path / "a" / "3", saved / "clients"]
    homes[2].mkdir()
    for home in homes[:3]:
        (home / ".nfs0001").touch()
    states.count(first, 2, oldest=2)
    states.count(written(states, c3=b"b"), 3, oldest=3)
    assert states.get(3, 3) == b"b"
    saved.mkdir()
    keep(states.newest(), saved)
    (homes[3] / ".DS_Store").touch()
    again = ClientStates(tmp_path / "b")
    again.restore(saved, 1, 3)
    assert again.get(3, 3) == b"b"
    assert (homes[2] / ".nfs0001").exists()


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.count(written(states, c3=b"whole"), 1, oldest=0)
    (tmp_path / "3" / "1").write_bytes(b"hole and 8 bytes")
    with pytest.raises(CheckpointError, match="damaged"):
        states.get(3, 1)


# Records


def kept(folder: Path) -> KeptByClients:
    return KeptByClients(str(folder), None, SimpleNamespace(version=1, worker=0, attachments=Halves()))  # type: ignore[arg-type]


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    ours = kept(tmp_path)
    state = {"n": 3, "x": 0.5, "t": torch.arange(6).view(2, 3)[:, 1], "l": [1, (None, True, b"b")], 4: {"deep": "text"}}
    record = {"state": state}
    ours.leave(7, record)
    states = ClientStates(tmp_path)
    states.count(ours._state.attachments.of(Turning).coming, 1, 0)
    back = ours.begin(7)["state"]
    assert torch.equal(back.pop("t"), torch.tensor([1, 4]))
    state.pop("t")
    assert back == state


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "client.state['a'] is a object, which cannot be kept"),
        ([1, {2}], "client.state['a'][1] is a set"),
        ({"b": lambda: 0}, "client.state['a']['b'] is a function"),
        ({(1, 2): 3}, "client.state['a'] is a dict"),
        (nn.Linear(1, 1), "client.state['a'] is a Linear"),
    ],
)
def test_what_cannot_be_loaded_again_is_refused(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kept(tmp_path).leave(1, {"state": {"a": value}})
    assert words in str(caught.value)


def test_workers_of_other_hosts_have_no_place_for_them() -> None:
    with pytest.raises(ConfigurationError, match="files of the host that starts the run, and this worker joined it"):
        KeptByClients("", None, SimpleNamespace(version=1))  # type: ignore[arg-type]


# In a run


def run(
    strategy: ps.Strategy, share: Any = "0", state: str | None = "keep", uses: bool = False, **options: Any
) -> ps.Run:
    def train(worker: ps.Worker) -> Any:
        torch.manual_seed(options.get("built", 0) and worker.rank)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, options.get("wide", 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = [(torch.ones(2), k % 2) for k in range(24)]
        lent = ps.Clients(
            data, ps.splits.iid(24, 6), per_round=3, rounds=options.get("rounds", 2), state=state, held_out=0.2
        )
        given = lent if strategy.every.by_client else torch.utils.data.DataLoader(data, batch_size=4)
        model, optimizer, clients = worker.prepare(model, optimizer, given, share=share)
        for client in clients:
            for inputs, labels in client if strategy.every.by_client else [client]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                if options.get("spoils") == client.id:
                    model[1].bias.data[:] = torch.nan
                optimizer.step()
            if uses:
                client.state["n"] = client.state.get("n", 0) + 1
        if options.get("judges"):
            return clients.evaluate(lambda model, batches: {"n": len(list(batches)), "w": model[1].bias[0]})
        return None

    given = {
        name: one for name, one in options.items() if name in ("runs", "resume", "checkpoint", "workers", "evaluate")
    }
    return ps.run(train, strategy, engine=ps.Simulated("uniform"), **{"workers": 2, **given})


@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        (ps.fedavg(), {"state": None}, "say ps.Clients(..., state='keep')"),
        (ps.fedavg(), {"state": None, "share": None, "uses": True}, "without ps.Clients(..., state='keep')"),
        (ps.fedavg(), {"state": "stay"}, "Clients(state='stay'): None or 'keep'"),
        (ps.sync_sgd(), {}, "under sync_sgd no worker steps on its own"),
        (ps.phases(ps.local_sgd(), (3, ps.async_sgd())), {}, "under async_sgd no worker steps on its own"),
        (ps.local_sgd(), {"evaluate": lambda model: {"x": 1.0}}, "evaluate= and on_round= are given one model"),
        (ps.fedavg(), {"built": 1}, "what share= leaves out has other values than on another worker"),
    ],
)
def test_what_has_no_place_to_last_is_refused(strategy: ps.Strategy, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.PlesioError) as caught:
        run(strategy, **options)
    assert words in str(caught.value)


def test_a_run_is_resumed_with_the_same_part(tmp_path: Path) -> None:
    first = run(ps.fedavg(), runs=tmp_path, checkpoint=ps.Checkpoint(), rounds=2)
    with pytest.raises(ps.PlesioError, match=r"kept has 1.weight \[2, 2\], and .* has 1.weight \[3, 2\]"):
        run(ps.fedavg(), resume=first.folder, rounds=3, wide=3)
    with pytest.raises(ps.PlesioError, match="and prepare it so"):
        run(ps.fedavg(), resume=first.folder, rounds=3, share="*")


def test_an_own_part_with_a_nan_leaves_its_client_out() -> None:
    with pytest.warns(RuntimeWarning, match="client 3, round 0: a NaN"):
        done = run(ps.fedavg(), spoils=3, rounds=1, uses=True)
    assert all(torch.isfinite(one).all() for one in done.state_dict.values())
    assert {one.client for one in done.summary.clients if one.left_out} == {3}


def test_all_clients_are_evaluated_with_what_is_their_own() -> None:
    found = run(ps.fedavg(), judges=True, workers=1, rounds=1).returned[0]
    assert sorted(found) == list(range(6))
    trained = {one["w"] for one in found.values()}
    assert len(trained) > 1, "those that were drawn have trained their own"
