"""Compiled passes give the bits that torch's operations give one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer

from plesio.core.events import Fold, Member
from plesio.kernels.folding import STRETCH
from plesio.kernels.lanes import LANES
from plesio.memory.folder import Folder, build_folder
from plesio.memory.publish import Versions
from plesio.strategy import Strategy
from plesio.strategy.recipes.asynchronous import async_sgd, buffered
from plesio.strategy.recipes.synchronous import sync_sgd
from plesio.tensors import one_pass
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.mean import weighted_into
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.tensors.optimizer_state import StatefulOptimizer
from support.long_forms import in_turn
from support.plain_folds import without_kernels

Make = Callable[[Sequence[torch.Tensor]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda given: SGD(given, lr=0.1),
    "momentum": lambda given: SGD(given, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda given: SGD(given, lr=0.1, momentum=0.9, nesterov=True),
    "dampened": lambda given: SGD(given, lr=0.1, momentum=0.9, dampening=0.3),
    "adam": lambda given: Adam(given, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda given: Adam(given, lr=0.01, amsgrad=True, betas=(0.4, 0.99)),
    "adamw": lambda given: AdamW(given, lr=0.01, weight_decay=0.1),
    "nadam": lambda given: NAdam(given, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
}
STRATEGIES: dict[str, Strategy] = {
    "async": async_sgd(),
    "plain": async_sgd("plain"),
    "buffered": buffered(2),
    "buffered plainly": buffered(2, correct="plain"),
    "round": sync_sgd(),
}
SIZES = st.sampled_from([1, LANES - 1, LANES, LANES + 1, 1000, STRETCH - 1, STRETCH, STRETCH + 1])
ODD = st.sampled_from([0.0, -0.0, 1e-42, 1e38, float("inf"), float("-inf"), float("nan")])


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pass, "LARGE", 0)
    monkeypatch.setattr("plesio.tensors.server_optimizer.LARGE", 0)


class Server:
    """A folder around a model of two tensors, of which one has one number."""

    def __init__(self, make: Make, strategy: Strategy, workers: int, size: int, compiled: bool, threads: int) -> None:
        layout = Layout(
            [
                TensorSpec("w", (size,), "float32", Kind.TRAINED, 0),
                TensorSpec("b", (), "float32", Kind.TRAINED, 0),
                TensorSpec("mean", (2,), "float32", Kind.BUFFER, 0),
            ]
        )
        self.ring = Versions([Arena.private(layout) for _ in range(workers + 3)])
        self.slots = [Arena.private(layout) for _ in range(workers)]
        source = torch.Generator().manual_seed(size)
        for buffer in self.ring.buffers[:1]:
            buffer.views[0].copy_(torch.randn(size, generator=source))
        for other in self.ring.buffers[1:]:
            other.copy_from(self.ring.buffers[0])
        spec = OptimizerSpec.of(make([torch.nn.Parameter(torch.zeros(2))]))
        with nullcontext() if compiled else without_kernels():
            self.folder: Folder = build_folder(
                strategy, [spec], self.ring, self.slots, workers, lambda _: Arena.private(layout), threads=threads
            )
        self.together = int(strategy.gather.size(workers))
        self.holds = self.together > 1 and not strategy.release.after_fold
        self.workers = workers
        for worker in range(workers):
            self.folder.publish(worker)

    def come(self, worker: int, gradient: torch.Tensor) -> None:
        slot = self.slots[worker]
        slot.views[0].copy_(gradient)
        slot.views[1].fill_(float(gradient[0]))
        slot.views[2].copy_(gradient[:1].expand(2))

    def fold(self, version: int, gradients: Sequence[torch.Tensor], shares: Sequence[float]) -> bytes:
        """One fold, by those whose turn it is; all that is then to be seen."""
        by = [(version * self.together + place) % self.workers for place in range(self.together)]
        for worker, gradient in zip(by, gradients, strict=False):
            self.come(worker, gradient)
            if self.holds:
                self.folder.hold(worker, 1.0)
                self.folder.publish(worker)
        members = [Member(one, 1, version, 0, 1.0, share, 1) for one, share in zip(by, shares, strict=False)]
        held = float(len(by)) if self.holds else None
        self.folder.fold(Fold(version, tuple(members), 1 / self.workers, held))
        seen = [self.ring.buffers[self.folder.publish(worker)].memory for worker in by]
        seen += self.folder.kept().tensors.values()
        seen.append(self.ring.buffers[self.folder.snapshot(-1)].memory)
        return b"".join(map(bits, seen)) + repr(self.folder.kept().numbers).encode()


def bits(memory: torch.Tensor) -> bytes:
    """One NaN is as good as another."""
    numbers = memory.contiguous().view(-1).view(torch.float32)
    return bytes(torch.where(numbers.isnan(), torch.nan, numbers).numpy().tobytes())


def test_kernels_round_as_torch_does() -> None:
    """Else none of this compares anything: they would not be used."""
    assert one_pass.kernels() is not None


@pytest.mark.few(6)
@pytest.mark.parametrize(("optimizer", "named"), in_turn([*OPTIMIZERS], [*STRATEGIES], later=pytest.mark.thorough))
@settings(deadline=None, max_examples=5)
@given(size=SIZES, workers=st.integers(1, 8), seed=st.integers(0, 99), odd=ODD, place=st.integers(0, 1 << 20))
def test_compiled_folds_have_the_bits_of_torchs_operations(
    optimizer: str, named: str, size: int, workers: int, seed: int, odd: float, place: int
) -> None:
    """Weights, look-ahead, state and statistics; with equal and unequal shares, and an odd number at any place."""
    strategy = STRATEGIES[named]
    workers = max(workers, 2) if strategy.gather.size(None) > 1 else workers
    servers = [Server(OPTIMIZERS[optimizer], strategy, workers, size, one, threads=1) for one in (True, False)]
    source = torch.Generator().manual_seed(seed)
    for version in range(1, 5):
        gradients = [torch.randn(size, generator=source) for _ in range(workers)]
        if version == 3:
            gradients[0][place % size] = odd
        shares = [1 / servers[0].together] * workers
        if seed % 2 and len(shares) > 1:
            shares[0], shares[1] = 0.5 * shares[0], 1.5 * shares[1]
        with np.errstate(all="ignore"):
            ours, theirs = (one.fold(version, gradients, shares) for one in servers)
        assert ours == theirs, f"version {version}"


@pytest.mark.few(2)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("strategy", ["async", "round"])
def test_threads_change_no_bit(optimizer: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads take whole stretches, of different numbers."""
    monkeypatch.setattr(one_pass, "ALONE_BELOW", 0)
    size = 7 * STRETCH + 100
    servers = [Server(OPTIMIZERS[optimizer], STRATEGIES[strategy], 2, size, True, threads) for threads in (1, 3)]
    for version in range(1, 4):
        gradients = [torch.randn(size) for _ in range(2)]
        one, three = (server.fold(version, gradients, [0.5, 0.5]) for server in servers)
        assert one == three


def test_padding_stays_zero_without_an_eps() -> None:
    """A segment is filled up with zeros, which Adam would divide by zero."""
    layout = Layout([TensorSpec("w", (3,), "float32", Kind.TRAINED, 0)])
    weights, gradient = Arena.private(layout), Arena.private(layout)
    ours = StatefulOptimizer(
        [OptimizerSpec.of(AdamW([torch.zeros(3)], eps=0.0))], weights, lambda: Arena.private(layout)
    )
    gradient.views[0].fill_(1.0)
    ours.step(weights, weights, gradient, [1.0])
    assert weights.flat[0].isfinite().all()
    assert weights.views[0].count_nonzero() == 3


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.25, 0.75], [1 / 3] * 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_mean_in_one_pass_has_the_bits_of_torch(shares: list[float], threads: int) -> None:
    found = one_pass.kernels()
    assert found is not None
    parts = list(torch.randn(len(shares), one_pass.ALONE_BELOW + 3 * LANES))
    ours, theirs = torch.empty_like(parts[0]), torch.empty_like(parts[0])
    one_pass.Pass(found, threads).mean(ours, parts, shares)
    weighted_into(theirs, parts, shares)
    assert torch.equal(ours, theirs)
