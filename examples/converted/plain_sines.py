"""Sines foretold by a recurrent net with L-BFGS, whose steps evaluate the loss several times."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

STEPS = 4


class Foreteller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(1, 8), nn.Linear(8, 1)

    def forward(self, sines: torch.Tensor) -> torch.Tensor:
        state, found = None, []
        for value in sines.T:
            state = self.cell(value[:, None], state)
            found.append(self.out(state[0]))
        return torch.cat(found, 1)


def main():
    torch.manual_seed(0)
    sines = torch.sin(torch.arange(20) / 3 + torch.rand(6, 1) * 6)
    model = Foreteller()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=6)

    for step in range(STEPS):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse_loss(model(sines[:, :-1]), sines[:, 1:])
            loss.backward()
            return loss

        print(f"step {step}: loss {optimizer.step(closure):.4f}")
    return model


if __name__ == "__main__":
    main()
