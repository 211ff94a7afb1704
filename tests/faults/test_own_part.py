"""What a site does not share never leaves it: by all bytes that the head received, and by all files that it wrote."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from support import remote
from support.proxy import Proxy

OWN = 40_000
"""Elements of a site's own head, so that nothing of its size can hide."""
SITES, ROUNDS = 2, 3


class Net(nn.Module):
    def __init__(self, site: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(8, 4)
        torch.manual_seed(100 + site)  # each begins with another head
        self.head = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, OWN // 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))  # type: ignore[no-any-return]


def train(worker: ps.Worker, told: str) -> list[float]:
    """A site writes down what it has of its own, and how that moved, in each round."""
    model = Net(worker.rank)
    begin = model.head[1].weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = worker.prepare(model, optimizer, share="body")
    weight = model.head[1].weight
    assert torch.equal(weight, begin), "no version overwrites it"
    with open(f"{told}-{worker.rank}", "wb") as file:
        for round in range(ROUNDS):
            before = weight.detach().clone()
            torch.manual_seed(10 * round + worker.rank)
            for _ in range(2):
                optimizer.zero_grad()
                cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 9, (16,))).backward()
                optimizer.step()
            moment = optimizer.state[weight]["exp_avg"]
            for one in (weight.detach(), before - weight, weight - before, weight.grad, moment):
                file.write(one.detach().numpy().tobytes())
            worker.contribute(samples=16)
    return [float(model.head[1].weight.sum()), float(begin.sum())]


def pieces(told: Path) -> list[bytes]:
    """Some of what each site has told, 16 bytes each."""
    whole = [Path(f"{told}-{site}").read_bytes() for site in range(SITES)]
    return [
        one[at : at + 16] for one in whole for at in range(0, len(one), 4096) if b"\0\0\0\0" not in one[at : at + 16]
    ]


def test_a_head_receives_nothing_of_what_a_site_keeps(tmp_path: Path) -> None:
    received: list[bytes] = []
    told = tmp_path / "told"

    def passed(piece: bytes) -> bytes:
        received.append(piece)
        return piece

    with remote.head(insecure=True) as head:
        proxy = Proxy(head.port)
        proxy.becomes = passed
        for rank in range(SITES):
            head.fork(partial(train, told=str(told)), rank=rank, address=f"tcp://127.0.0.1:{proxy.port}")
        run = head.run(ps.fedavg(), SITES, runs=tmp_path / "runs", checkpoint=ps.Checkpoint(every_s=0.01))
        assert head.end() == [0] * SITES
        proxy.close()
    whole = b"".join(received)
    assert run.version == ROUNDS
    assert set(run.state_dict) == {"body.weight", "body.bias"}
    assert run.state_dict["body.weight"].numpy().tobytes()[:16] in whole, "what is shared is found so"
    own = pieces(told)
    assert len(own) > 500
    assert not [one for one in own if one in whole]
    assert len(whole) < 4 * OWN
    assert run.folder is not None
    assert sum(one.stat().st_size for one in run.folder.rglob("*.*") if "html" not in one.name) < 4 * OWN


def test_nor_do_checkpoints_of_local_workers_have_it(tmp_path: Path) -> None:
    task = partial(train, told=str(tmp_path / "told"))
    run = ps.run(task, ps.fedavg(), workers=SITES, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=0.01))
    assert run.folder is not None
    files = [one for one in (run.folder / "checkpoints").rglob("*") if one.is_file()]
    assert any(one.name.startswith("worker-") for one in files), "the state of what is shared is there"
    assert sum(one.stat().st_size for one in files) < 4 * OWN
    (first, first_begin), (second, second_begin) = (run.returned[rank] for rank in range(SITES))
    assert len({first, first_begin, second, second_begin}) == 4, "each has its own, and trains it"
