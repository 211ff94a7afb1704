"""What is sent from a device, and in which order: over fake streams, and over a GPU's where there is one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from plesio.system.pinned import Pinned
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.model import describe
from plesio.transport.ring import Ring
from plesio.worker.replicas import copies as copies_module
from plesio.worker.replicas import early, on_device, replica
from plesio.worker.replicas.copies import Copies, StreamedCopies, arena_of
from plesio.worker.replicas.on_device import DeviceGradientReplica, send
from support.streams import FakeCopies, FakeStreams

WAYS = [
    "late",
    "at once",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(5, 4, sparse=True)
        self.first, self.second, self.unused = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(
            self.first(rows + self.words(torch.tensor([0, 2], device=rows.device)).sum(0)).tanh()
        )
        return result


def made(way: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Model, DeviceGradientReplica, Arena]:
    """A model whose replica is on a device, and its slot."""
    device = torch.device("cuda", 0) if way == "cuda" else torch.device("cpu")
    monkeypatch.setattr(early, "EARLY_BYTES", 0)
    if way != "cuda":
        monkeypatch.setattr(replica, "copies_for", lambda *_: FakeCopies(FakeStreams(way == "late")))
    model = Model().to(device)
    described, tensors = describe(model, torch.optim.SGD(model.parameters(), lr=0.1))
    layout = Layout(described.specs)
    slot = Arena.private(layout)
    replicated = DeviceGradientReplica(layout, model, tensors, Ring([Arena.private(layout)]), slot)
    for view in slot.views:
        view.fill_(7.0)  # what a fold may have left there
    return model, replicated, slot


def backward(model: Model, scale: float = 1.0) -> None:
    (model(torch.full((2, 4), 0.5, device=model.first.weight.device)).square().sum() * scale).backward()


def gradients_of(model: Model) -> list[torch.Tensor]:
    return [one.grad for one in model.parameters() if one.grad is not None and not one.grad.is_sparse]


def clip(model: Model) -> None:
    nn.utils.clip_grad_norm_([one for one in model.parameters() if one is not model.words.weight], 1e-3)


def unscale(model: Model) -> None:
    """As `GradScaler.unscale_` does it, which torch does not count as a write."""
    grads = gradients_of(model)
    device = grads[0].device
    torch._amp_foreach_non_finite_check_and_unscale_(
        grads, torch.zeros(1, device=device), torch.full((), 0.25, device=device)
    )


def write_to_data(model: Model) -> None:
    model.first.weight.grad.data[0] = 0.0  # type: ignore[union-attr]


def negate(model: Model) -> None:
    for one in gradients_of(model):
        one.data.neg_()


def replace(model: Model) -> None:
    for one in model.parameters():
        one.grad = one.grad * 3 if one.grad is not None else None


def give_other_memory(model: Model) -> None:
    for one in gradients_of(model):
        one.data = one.data + 1.0


def transpose(model: Model) -> None:
    model.first.weight.grad = model.first.weight.grad.t().contiguous().t() * 2.0  # type: ignore[union-attr]


def let_go_and_begin_anew(model: Model) -> None:
    model.zero_grad()
    backward(model, 0.5)


def zero_and_begin_anew(model: Model) -> None:
    model.zero_grad(set_to_none=False)
    backward(model, 0.5)


def take_one_away(model: Model) -> None:
    model.second.bias.grad = None


CHANGES: list[Callable[[Model], None]] = [
    lambda model: None,
    backward,
    clip,
    unscale,
    write_to_data,
    negate,
    replace,
    give_other_memory,
    transpose,
    let_go_and_begin_anew,
    zero_and_begin_anew,
    take_one_away,
]


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__.strip("<>"))
def test_what_the_loop_made_of_the_gradients_is_sent(
    change: Callable[[Model], None], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, replicated, slot = made(way, monkeypatch)
    for step in range(2):
        model.zero_grad(set_to_none=step == 0)
        backward(model)
        change(model)
        assert replicated.fill_slot()
        for index, tensor in enumerate(replicated.tensors):
            if tensor.grad is not None:
                assert torch.equal(slot.views[index], tensor.grad.to_dense().cpu()), replicated.layout.specs[index].name
            else:
                assert replicated.absent >> index & 1
    assert replicated.missing == sum(one.grad is None for one in replicated.tensors)


def test_an_absent_gradient_is_zero_beside_others_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it was copied early."""
    model, replicated, slot = made("late", monkeypatch)
    backward(model)
    take_one_away(model)
    replicated.fill_slot()
    place = [spec.name for spec in replicated.layout.specs].index("second.bias")
    assert not slot.views[place].any()


def test_gradients_are_copied_once_and_early_where_nothing_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, replicated, _ = made("late", monkeypatch)
    copies = replicated._copies
    assert isinstance(copies, FakeCopies)
    backward(model)
    assert len(copies.put_in) == 4
    replicated.fill_slot()
    assert len(copies.put_in) == 5, "the sparse gradient is copied late"
    assert copies.fakes.log.count("host waits for copies") == 1


def two_passes_more(model: Model) -> None:
    backward(model)
    backward(model)


@pytest.mark.parametrize("change", [clip, unscale, two_passes_more])
def test_early_copies_that_are_made_again_each_time_are_given_up(
    change: Callable[[Model], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, replicated, _ = made("late", monkeypatch)
    copies = replicated._copies
    assert isinstance(copies, FakeCopies)
    early_copies = []
    for _ in range(4):
        model.zero_grad()
        copies.put_in.clear()
        backward(model)
        early_copies.append(len(copies.put_in))
        change(model)
        replicated.fill_slot()
    assert early_copies == [4, 4, 0, 0]


def test_nothing_is_copied_early_into_a_graph_or_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model, replicated, _ = made("late", monkeypatch)
    copies = replicated._copies
    assert isinstance(copies, FakeCopies)
    copies.fakes.capturing = True
    backward(model)
    copies.fakes.capturing = False
    replicated.close()
    backward(model)
    assert not copies.put_in


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_is_not_finite_is_found(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, replicated, _ = made(way, monkeypatch)
    for wrong in (torch.nan, torch.inf, 1.0):
        model.zero_grad()
        backward(model)
        model.second.bias.grad[0] = wrong  # type: ignore[index]
        assert replicated.fill_slot() == (wrong == 1.0)


def test_copies_wait_for_the_model_and_the_model_for_copies() -> None:
    layout = Layout(
        [TensorSpec("w", (2, 2), "float32", Kind.TRAINED, 0), TensorSpec("n", (3,), "float32", Kind.BUFFER)]
    )
    version, mine, slot = (Arena.private(layout) for _ in range(3))
    version.views[0].fill_(3.0)
    copies = FakeCopies(FakeStreams())
    log = copies.fakes.log

    copies.bring(mine, version)
    assert log == ["copies waits for model", "copy", "model waits for copies"]
    assert mine.views[0].sum() == 12.0

    log.clear()
    mine.views[0].add_(1.0)
    assert send(copies, slot, mine, version, None)
    assert (log[0], log[-1]) == ("copies waits for model", "host waits for copies")
    assert (log.count("host waits for copies"), log.count("copy")) == (1, 3)
    assert torch.equal(slot.views[0], torch.full((2, 2), -1.0))

    log.clear()
    copies.settle()
    assert not log, "nothing was copied since"
    copies.bring(mine, version)
    copies.settle()
    assert log[-1] == "host waits for copies"


def test_a_difference_is_sent_in_pieces_and_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "PIECE", 5)
    layout = Layout([TensorSpec("w", (13,), "float32", Kind.TRAINED, 0)])
    start, mine, slot = (Arena.private(layout) for _ in range(3))
    start.views[0].copy_(torch.arange(13.0))
    for copies in (Copies(), FakeCopies(FakeStreams())):
        mine.views[0].fill_(2.0)
        assert send(copies, slot, mine, start, None)
        assert torch.equal(slot.views[0], torch.arange(13.0) - 2.0)
        assert not send(copies, slot, mine, start, torch.tensor(False)), "a step was not"
        mine.views[0][11] = torch.nan
        assert not send(copies, slot, mine, start, None)


def test_a_model_moves_into_its_arena_by_way_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the arena is made, the tensors have let go of their memory."""
    layout = Layout([TensorSpec("w", (2, 2), "float32", Kind.TRAINED, 0), TensorSpec("n", (), "int64", Kind.BUFFER)])
    tensors = [nn.Parameter(torch.full((2, 2), 3.0)), torch.tensor(4)]
    held: list[int] = []
    private = Arena.private

    def noted(*given: Any) -> Arena:
        held.append(sum(one.numel() for one in tensors))
        return private(*given)

    monkeypatch.setattr(copies_module.Arena, "private", noted)
    arena = arena_of(layout, tensors)
    assert held == [5, 0]
    assert torch.equal(arena.views[0], torch.full((2, 2), 3.0))
    assert int(arena.views[1]) == 4


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What CUDA was asked to pin and to unpin, and what it answers."""
    fake = SimpleNamespace(pinned=[], unpinned=[], error=0)

    def pin(address: int, nbytes: int, flags: int) -> int:
        assert flags == 1, "portable"
        if address in fake.pinned:
            return 712
        fake.pinned += [] if fake.error else [address]
        return int(fake.error)

    cudart = SimpleNamespace(cudaHostRegister=pin, cudaHostUnregister=fake.unpinned.append)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *given, device=None, **told: zeros(*given, **told))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return fake


GPU = torch.device("cuda", 0)


def test_memory_is_pinned_once_and_let_go(cuda: Any) -> None:
    pieces = [torch.zeros(8), torch.zeros(8)]
    addresses = [one.data_ptr() for one in pieces]
    first, second = Pinned(pieces, GPU), Pinned(pieces, GPU)
    assert cuda.pinned == addresses
    assert not first.trouble
    second.close()
    assert not cuda.unpinned, "it belongs to the first"
    first.close()
    first.close()
    assert cuda.unpinned == addresses


def test_what_is_forgotten_is_unpinned(cuda: Any) -> None:
    Pinned([torch.zeros(8)], GPU)
    gc.collect()
    assert len(cuda.unpinned) == 1


def test_each_buffer_of_a_block_is_pinned(cuda: Any) -> None:
    """`torch.Tensor.is_pinned` says so of all of them, once the first is."""
    pieces = list(torch.zeros(3, 8))
    Pinned(pieces, GPU)
    assert cuda.pinned == [one.data_ptr() for one in pieces]


def test_where_memory_cannot_be_pinned_nothing_is_copied_early(cuda: Any) -> None:
    cuda.error = 2
    with pytest.warns(RuntimeWarning, match=r"did not pin 32 bytes of shared memory \(cudaError 2\)"):
        copies = StreamedCopies(GPU, FakeStreams(), [torch.zeros(8)])
    assert not copies.overlap
