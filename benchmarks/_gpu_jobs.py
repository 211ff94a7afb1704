"""What gpu.py trains: models whose data lie on the device already, and the time of a step.

A job is plain data, so that it can travel to any process; `build` makes its model there, and `compute` does the forward and
backward passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY = 10
"""Tokens that there are, for each number of the width."""


class Flat(nn.Module):
    """So many parameters in `pieces` tensors, and next to no computing."""

    def __init__(self, params: int, pieces: int) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(torch.ones(params // pieces) for _ in range(pieces))

    def forward(self) -> Tensor:
        return torch.stack([piece.sum() for piece in self.pieces]).sum() * 1e-6


class Block(nn.Module):
    """Attention, and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        moved: Tensor = x + self.mlp(self.norms[1](x))
        return moved


class Transformer(nn.Module):
    """As GPT-2, with a smaller vocabulary."""

    def __init__(self, width: int, layers: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


class Residual(nn.Module):
    """Two convolutions, around which the input goes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


def conv_net(width: int) -> nn.Module:
    """Eight residual blocks, as ResNet-18 has."""
    sizes = [width * 2**stage for stage in (0, 0, 1, 1, 2, 2, 3, 3)]
    befores = [3, *sizes[:-1]]
    blocks = [Residual(a, b, 1 + (a != b and a > 3)) for a, b in zip(befores, sizes, strict=True)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], 1000))


@dataclass(frozen=True)
class Job:
    """`kind`: flat, transformer or convolutions; `size`: of its parameters (flat), or its width; `batch` samples of `length`
    tokens, or of images with so wide sides; `device`: cuda or cpu."""

    kind: str
    size: int
    batch: int = 0
    length: int = 0
    layers: int = 12
    device: str = "cuda"

    def build(self, rank: int = 0) -> tuple[nn.Module, Callable[[Any], None]]:
        """The model on the device, and what computes the gradients of it, or of what was made of it."""
        torch.manual_seed(0)
        device = place(self.device, rank)
        if self.kind == "flat":
            return Flat(self.size, 48).to(device), lambda model: model().backward()
        if self.kind == "transformer":
            model: nn.Module = Transformer(self.size, self.layers, VOCABULARY * self.size, self.length)
            inputs = torch.randint(VOCABULARY * self.size, (self.batch, self.length), device=device)
            wanted = inputs.roll(-1, 1).view(-1)
        else:
            model = conv_net(self.size).to(memory_format=torch.channels_last)
            inputs = torch.randn(self.batch, 3, self.length, self.length, device=device)
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            wanted = torch.randint(1000, (self.batch,), device=device)

        def compute(model: Any) -> None:
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                scores = model(inputs)
                loss = cross_entropy(scores.view(-1, scores.shape[-1]), wanted)
            loss.backward()

        return model.to(device), compute

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.kind == "flat":
            return torch.optim.SGD(model.parameters(), lr=1e-9)
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    @property
    def nbytes(self) -> int:
        """Of its trained parameters."""
        with torch.device("meta"):
            if self.kind == "flat":
                return 4 * self.size
            model = Transformer(self.size, self.layers, VOCABULARY * self.size, self.length)
            return sum(one.numel() * one.element_size() for one in model.parameters())


def place(device: str, rank: int) -> torch.device:
    """Where rank `rank` computes: workers share the GPUs that there are."""
    return torch.device("cuda", rank % torch.cuda.device_count()) if device == "cuda" else torch.device(device)


def wait_for(device: str) -> None:
    """Until the device has done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()


def step_ms(step: Callable[[], object], steps: int, warm_up: int, device: str) -> float:
    """Milliseconds that one of `steps` takes, after `warm_up` others."""
    if device == "cpu":
        torch.set_num_threads(1)
    for _ in range(warm_up):
        step()
    wait_for(device)
    began_s = time.perf_counter()
    for _ in range(steps):
        step()
    wait_for(device)
    return 1e3 * (time.perf_counter() - began_s) / steps
