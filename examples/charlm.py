"""A character model of the source text of Python's standard library, for strategies that talk seldom.

    plesio run examples/charlm.py --strategy local_sgd --set every=20 --workers 4
    plesio run examples/charlm.py --strategy diloco --set every=20 --workers 4 -- --steps 9600
    plesio run examples/charlm.py --strategy sync_sgd --workers 4 -- --warm runs/.../weights.safetensors --lr 0.001

An MLP of 110,000 parameters looks at 12 characters and tells the next. `evaluate` gives the loss on files that were held out, in
nats a character.
"""

from __future__ import annotations

import argparse
import functools
import sysconfig
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps

CONTEXT, BATCH, CHARACTERS = 12, 32, 128


@functools.cache
def text(held_out: bool) -> torch.Tensor:
    """Every tenth file is held out; 3 million characters and 300,000."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chosen = files[::10] if held_out else [one for number, one in enumerate(files) if number % 10]
    data = b"".join(one.read_bytes() for one in chosen)[: 300_000 if held_out else 3_000_000]
    return torch.frombuffer(bytearray(byte for byte in data if byte < CHARACTERS), dtype=torch.uint8).long()


def windows(source: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = source[places[:, None] + torch.arange(CONTEXT + 1)]
    return rows[:, :-1], rows[:, -1]


def build(width: int = 256) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(CHARACTERS, 24),
        nn.Flatten(),
        nn.Linear(24 * CONTEXT, width),
        nn.GELU(),
        nn.Linear(width, CHARACTERS),
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2400, help="of all workers together")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warm", help="weights to begin from")
    return parser.parse_args()


def train(worker: ps.Worker, given: argparse.Namespace | None = None) -> None:
    """AdamW, with a cosine down to 0."""
    given = given or options()
    torch.manual_seed(worker.seed)
    model = build()
    if given.warm:
        model.load_state_dict(load_file(given.warm))
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    model, optimizer, scheduler = worker.prepare(model, optimizer, scheduler)
    source = text(held_out=False)
    for step in worker.steps(given.steps):
        draw = torch.Generator().manual_seed(worker.seed * 1_000_003 + step)
        inputs, following = windows(source, torch.randint(len(source) - CONTEXT, (BATCH,), generator=draw))
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), following)
        worker.count(samples=BATCH)
        loss.backward()
        optimizer.step()
        scheduler.step()
        worker.log(loss=loss)


def evaluate(model: nn.Module) -> dict[str, float]:
    """On 20,000 places of the held-out text."""
    source = text(held_out=True)
    with torch.no_grad():
        inputs, following = windows(source, torch.arange(0, len(source) - CONTEXT, max(1, len(source) // 20_000)))
        return {"loss": cross_entropy(model(inputs), following).item()}


if __name__ == "__main__":
    run = ps.run(functools.partial(train, given=options()), ps.local_sgd(20), workers=4, evaluate=evaluate)
    print(run)
