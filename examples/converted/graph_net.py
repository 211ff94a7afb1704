"""A graph convolution over one graph: every step sees all of it, so there is no loader."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu

import plesio as ps

STEPS, NODES = 30, 60


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(8, 16), nn.Linear(16, 3), nn.Dropout(0.5)

    def forward(self, adjacency: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return adjacency @ self.second(self.dropout(relu(adjacency @ self.first(features))))


def graph() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nodes of three classes, which are mostly joined to their own; rows of the adjacency add up to 1."""
    source = torch.Generator().manual_seed(1)
    labels = torch.arange(NODES) % 3
    joined = torch.rand(NODES, NODES, generator=source) < torch.where(labels[:, None] == labels, 0.3, 0.03)
    adjacency = (joined | joined.T).float() + torch.eye(NODES)
    features = torch.randn(NODES, 8, generator=source)
    features[:, :3] += nn.functional.one_hot(labels).float()
    return adjacency / adjacency.sum(1, keepdim=True), features, labels


def train(worker):
    torch.manual_seed(0)
    adjacency, features, labels = graph()
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    model, optimizer = worker.prepare(model, optimizer)
    loss = float("nan")  # others may make all steps
    for _ in worker.steps(STEPS):
        optimizer.zero_grad()
        loss = cross_entropy(model(adjacency, features), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss:.3f}")
    return model


if __name__ == "__main__":
    ps.run(train, "async_sgd", workers=2)
