"""An actor-critic on a corridor that trains until the corridor is solved: nobody knows how many episodes that takes."""

import torch
from torch import nn

LENGTH, SOLVED = 5, 0.7


def played(model: nn.Module) -> tuple[torch.Tensor, float]:
    """Walk until the end of the corridor, at most 12 steps; the loss of the episode, and its reward."""
    place, reward, terms = 0, 0.0, []
    for step in range(12):
        state = torch.nn.functional.one_hot(torch.tensor(place), LENGTH).float()
        *logits, value = model(state)
        chances = torch.distributions.Categorical(logits=torch.stack(logits))
        action = chances.sample()
        place = max(0, place + (1 if action else -1))
        reward = 1.0 - 0.05 * step if place == LENGTH - 1 else 0.0
        advantage = reward - value
        terms.append(advantage.square() - chances.log_prob(action) * advantage.detach())
        if reward:
            break
    return torch.stack(terms).sum(), reward


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(LENGTH, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    running, episode = 0.0, 0

    while True:
        episode += 1
        optimizer.zero_grad()
        loss, reward = played(model)
        loss.backward()
        optimizer.step()
        running = 0.1 * reward + 0.9 * running
        if running > SOLVED:
            print(f"solved after {episode} episodes")
            break
    return model


if __name__ == "__main__":
    main()
