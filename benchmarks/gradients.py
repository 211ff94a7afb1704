"""What it costs to pack gradients: `sync_sgd(codec=...)` against float32 at equal steps.

    python benchmarks/gradients.py --json gradients.json

A small GPT on the source of Python's standard library, with AdamW and a cosine, and a small ResNet with batch norm on
scikit-learn's digits, with SGD and momentum. Workers are simulated, so that a run is the same each time. The loss is that on
data held out, the mean of the seeds; of the digits with label smoothing, without which it would be near 0, and its differences
noise. A seed draws the initial weights and the order of the data, for all codecs alike. A model's buffers (the ResNet's) are not
packed, and count.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from _report import Row, meets, parser, progress, report
from plesio.strategy.answers import Codec, TopK

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import charlm

WORKERS, CONTEXT, WIDTH, HEADS = 4, 32, 64, 4
CODECS: dict[str, str | Codec] = {
    "bf16": "bf16",
    "int8": "int8",
    "int4": "int4",
    "top 10%": TopK(0.1),
    "top 1%": TopK(0.01),
}
TARGETS = {"int8": ("<= 1.005", "<= 0.26")}
SMOOTHING = 0.1


class Layer(nn.Module):
    """Causal attention, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attended, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        of_heads = self.attended(self.before(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*of_heads.unbind(0), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.between(x))


class GPT(nn.Module):
    """Two layers, 120,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(charlm.CHARACTERS, WIDTH)
        self.places = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.layers = nn.Sequential(Layer(), Layer(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, charlm.CHARACTERS))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(self.characters(text) + self.places)
        return logits


def text_loss(model: nn.Module, source: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    rows = source[places[:, None] + torch.arange(CONTEXT + 1)]
    return cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def train_text(worker: ps.Worker, steps: int) -> None:
    torch.manual_seed(worker.seed)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model, optimizer, scheduler = worker.prepare(model, optimizer, scheduler)
    source = charlm.text(held_out=False)
    for step in range(steps):
        draw = torch.Generator().manual_seed((worker.seed * 1_000_003 + step) * WORKERS + worker.rank)
        optimizer.zero_grad()
        text_loss(model, source, torch.randint(len(source) - CONTEXT, (8,), generator=draw)).backward()
        optimizer.step()
        scheduler.step()


def loss_of_text(state: dict[str, torch.Tensor]) -> float:
    model, source = GPT(), charlm.text(held_out=True)
    model.load_state_dict(state)
    with torch.no_grad():
        return text_loss(model, source, torch.arange(0, len(source) - CONTEXT, 100)).item()


class Block(nn.Module):
    """Two convolutions, and what they were given."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False))
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.layers(x)))


def resnet() -> nn.Module:
    """Three blocks, 60,000 parameters."""
    first = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Block(16)]
    second = [nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), Block(32), Block(32)]
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def digits(held_out: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """1,280 images to train on, and 517 held out."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    chosen = order[1280:] if held_out else order[:1280]
    images = torch.tensor(found.images, dtype=torch.float32)[chosen, None] / 16
    return images, torch.tensor(found.target)[chosen]


def train_digits(worker: ps.Worker, steps: int) -> None:
    torch.manual_seed(worker.seed)
    model, (images, labels) = resnet(), digits(held_out=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model, optimizer, scheduler = worker.prepare(model, optimizer, scheduler)
    for step in range(steps):
        draw = torch.Generator().manual_seed((worker.seed * 1_000_003 + step) * WORKERS + worker.rank)
        some = torch.randint(len(labels), (16,), generator=draw)
        optimizer.zero_grad()
        cross_entropy(model(images[some]), labels[some], label_smoothing=SMOOTHING).backward()
        optimizer.step()
        scheduler.step()


def loss_of_digits(state: dict[str, torch.Tensor]) -> float:
    model, (images, labels) = resnet(), digits(held_out=True)
    model.load_state_dict(state)
    with torch.no_grad():
        return cross_entropy(model.eval()(images), labels, label_smoothing=SMOOTHING).item()


@dataclass(frozen=True)
class Task:
    """A model to train for so many steps, and its loss on data held out."""

    train: Callable[..., None]
    loss: Callable[[dict[str, torch.Tensor]], float]
    steps: int


TASKS = {"GPT": Task(train_text, loss_of_text, 600), "ResNet": Task(train_digits, loss_of_digits, 300)}


def trained(task: Task, codec: str | Codec | None, seed: int, steps: int) -> tuple[float, float]:
    """The loss, and the bytes of all contributions."""
    strategy = ps.sync_sgd(codec=codec)
    run = ps.run(partial(task.train, steps=steps), strategy, workers=WORKERS, seed=seed, engine=ps.Simulated("uniform"))
    loss, both = task.loss(run.state_dict), float(run.summary.bytes)
    progress.print(
        f"{task.train.__name__}, {strategy.name}, seed {seed}: loss {loss:.4f}, {both / 1e6:.1f} MB both ways"
    )
    return loss, both


def rows_of(name: str, task: Task, seeds: range, steps: int) -> list[Row]:
    runs = {codec: [trained(task, given, one, steps) for one in seeds] for codec, given in {"": None, **CODECS}.items()}
    mean = {codec: statistics.fmean(loss for loss, _ in every) for codec, every in runs.items()}
    whole = runs[""][0][1] / 2
    rows = []
    for codec, given in CODECS.items():
        both, (of_loss, of_bytes) = runs[codec][0][1], TARGETS.get(codec, (None, None))
        sent = (
            both / 2 if ps.sync_sgd(codec=given).adopt.codec is not None else both - whole
        )  # else it comes back whole
        for what, one, other, unit, target in (
            ("loss", mean[codec], mean[""], "nats", of_loss),
            ("contributions", sent / 1e6, whole / 1e6, "MB", of_bytes),
        ):
            met = None if target is None else meets(one / other, target)
            rows.append(
                Row(f"{name}, {codec}: {what}", one, unit, "float32", other, one / other, target, met, len(seeds))
            )
    spread = statistics.stdev(loss for loss, _ in runs[""]) if len(seeds) > 1 else 0.0
    rows.append(Row(f"{name}, float32: spread of seeds", spread, "nats", None, None, None, None, None, len(seeds)))
    return rows


def main() -> None:
    arguments = parser("Packed gradients against float32.", runs=3).parse_args()
    torch.set_num_threads(1)
    seeds = range(1 if arguments.quick else arguments.runs)
    rows = [
        one for name, task in TASKS.items() for one in rows_of(name, task, seeds, 20 if arguments.quick else task.steps)
    ]
    report("Packed gradients", rows, arguments.json)


if __name__ == "__main__":
    main()
