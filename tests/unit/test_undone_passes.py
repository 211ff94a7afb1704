"""A pass that a killed process was in is gone on with: the bits are those of one that nobody killed."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from plesio.system.memory import SharedBlock
from plesio.tensors.adam import LARGEST, MEAN, SQUARE, begin, count, numbers_of
from plesio.tensors.arena import Kind, Layout, TensorSpec
from plesio.tensors.one_pass import Pass, PassAhead, kernels
from plesio.tensors.undo import Undo
from support.long_forms import but_thorough

SIZE = 1_300_000  # so that a pass takes a few milliseconds, and a second thread takes part
KINDS = ("sgd", "adam", "amsgrad")
PASSES, EACH = 3, 9
MODEL = Layout([TensorSpec(f"{at}", (SIZE,), "float32", Kind.TRAINED, 0) for at in range(PASSES)])


class Step:
    """Several passes of a step over memory that processes share; `undo`: what they are kept in."""

    def __init__(self, kind: str, undo: Undo | None) -> None:
        self.kind, self.undo = kind, undo
        self.blocks = [SharedBlock.create(4 * SIZE, "memory of a test") for _ in range(EACH * PASSES)]
        self.tensors = [block.memory[: 4 * SIZE].view(torch.float32) for block in self.blocks]
        self.begin_anew()

    def begin_anew(self) -> None:
        source = torch.Generator().manual_seed(1)
        first = torch.randn(SIZE, generator=source)
        for number, tensor in enumerate(self.tensors):
            tensor.copy_(first * (0.5 + 0.1 * number)).add_(0.01 * number)
            if number % EACH in (3, 4):
                tensor.abs_()

    def take(self, effect: int, threads: int = 2) -> list[bytes]:
        """All of it, or what is left of it: the sums of the gaps."""
        by = Pass(kernels(), threads)  # type: ignore[arg-type]
        by.undo = self.undo
        if self.undo is not None:
            self.undo.begin(effect)
        gaps = []
        for at in range(PASSES):
            out, weight, mean, square, largest, total, then, slot, shown = self.tensors[EACH * at : EACH * (at + 1)]
            if at == 1:
                out = weight  # in place
            ahead, slots, shares = PassAhead(total, then, 0.7, shown, -0.1), [slot, weight], [0.25, 0.75]
            group: dict[str, Any] = AdamW([weight], lr=0.1).param_groups[0]
            group |= {"momentum": 0.9, "dampening": 0.1, "nesterov": True}
            if self.kind == "sgd":
                gaps.append(by.sgd(out, weight, slots, shares, mean, False, group, 0.1, ahead).tobytes())
                continue
            state: dict[str, Any] = {MEAN: mean, SQUARE: square}
            if self.kind == "amsgrad":
                state[LARGEST] = largest
            begin(AdamW, state)
            count(state, group)
            numbers = numbers_of(state, group, 0.1, 0.1, exact=True)
            gaps.append(by.adam(out, weight, slots, shares, state, numbers, ahead).tobytes())
        return gaps

    def stands(self) -> list[bytes]:
        return [tensor.numpy().tobytes() for tensor in self.tensors]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", but_thorough(KINDS, ["adam"]))
def test_killed_in_a_pass_again_and_again(kind: str) -> None:
    module = kernels()
    assert module is not None
    plain, step, rng = Step(kind, None), Step(kind, Undo(module, MODEL, 2)), random.Random(kind)
    began_s = time.monotonic()
    gaps = plain.take(0)
    took_s, wanted, inside = time.monotonic() - began_s, plain.stands(), 0
    for effect in range(1, 9):
        step.begin_anew()
        for _ in range(rng.randrange(1, 5)):
            if not (child := os.fork()):
                step.take(effect)
                os._exit(0)
            time.sleep(rng.random() * (took_s + 0.004))
            os.kill(child, signal.SIGKILL)
            inside += os.waitpid(child, 0)[1] == signal.SIGKILL
        assert step.take(effect) == gaps
        assert step.stands() == wanted
    assert inside > 3
