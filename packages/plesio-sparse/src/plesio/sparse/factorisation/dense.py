"""The same factorisation as a PyTorch module, for `ps.hogwild()` and every other strategy."""

from __future__ import annotations

import torch
from torch import nn


class DenseFactorization(nn.Module):
    """mean + user bias + item bias + user factors · item factors, of rows of users and rows of items.

    >>> DenseFactorization(3, 5, factors=2)(torch.tensor([0, 2]), torch.tensor([4, 4])).shape
    torch.Size([2])
    """

    mean: torch.Tensor

    def __init__(self, users: int, items: int, factors: int, mean: float = 0.0) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.register_buffer("mean", torch.tensor(mean))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Ratings, of the shape of `users` and `items`."""
        rating: torch.Tensor = (self.users(users) * self.items(items)).sum(-1)
        rating += self.user_bias(users)[..., 0] + self.item_bias(items)[..., 0] + self.mean
        return rating
