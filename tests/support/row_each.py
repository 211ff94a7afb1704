"""A model that counts: each sample has a row of its own, and a step takes 1 from the rows of its batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def row_each(worker: Any, samples: int, batch: int, width: int = 1, lr: float = 1.0) -> tuple[Any, Any, Any]:
    """The model, its optimizer and the loader of all samples, prepared by `worker`."""
    model = nn.Embedding(samples, width)
    nn.init.zeros_(model.weight)
    loader = DataLoader(TensorDataset(torch.arange(samples)), batch_size=batch, shuffle=True)
    prepared: tuple[Any, Any, Any] = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=lr), loader)
    return prepared
