"""An advantage actor-critic on a corridor: the loop counts episodes, and draws its own data."""

import torch
from torch import nn

import plesio as ps

EPISODES, LENGTH = 40, 6


def played(model: nn.Module, episode: int) -> torch.Tensor:
    """Walk until the end of the corridor, at most 12 steps; the loss of the episode."""
    source, place, terms = torch.Generator().manual_seed(episode), 0, []
    for step in range(12):
        state = torch.nn.functional.one_hot(torch.tensor(place), LENGTH).float()
        *logits, value = model(state)
        chances = torch.stack(logits).softmax(0)
        right = int(torch.multinomial(chances.detach(), 1, generator=source))
        place = max(0, place + (1 if right else -1))
        reward = 1.0 - 0.05 * step if place == LENGTH - 1 else 0.0
        advantage = reward - value
        terms.append(advantage.square() - chances[right].log() * advantage.detach())
        if reward:
            break
    return torch.stack(terms).sum()


def train(worker):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(LENGTH, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    model, optimizer = worker.prepare(model, optimizer)
    loss = float("nan")  # others may make all steps
    for episode in worker.steps(EPISODES):
        optimizer.zero_grad()
        loss = played(model, episode)
        loss.backward()
        optimizer.step()
    print(f"loss {loss:.3f}")
    return model


if __name__ == "__main__":
    ps.run(train, "async_sgd", workers=2)
