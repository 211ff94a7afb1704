"""A GAN as many people write one: all of it at the module's level."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as judged
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

torch.manual_seed(0)
EPOCHS, BATCH = 2, 16
images = torch.tensor(load_digits().data[:320], dtype=torch.float32) / 8 - 1
loader = DataLoader(TensorDataset(images), batch_size=BATCH, shuffle=True)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Tanh())
critic = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(32, 1))
g_adam = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
c_adam = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))


def train(worker):
    ours = worker.prepare(generator, critic, g_adam, c_adam, loader)
    fit(*ours)


def fit(generator, critic, g_adam, c_adam, loader):
    c_loss = g_loss = float("nan")  # a pass may be empty
    for epoch in range(EPOCHS):
        for (real,) in loader:
            fake = generator(torch.randn(len(real), 8))
            c_adam.zero_grad()
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            c_loss = judged(critic(real), ones) + judged(critic(fake.detach()), zeros)
            c_loss.backward()
            c_adam.step()
            g_adam.zero_grad()
            g_loss = judged(critic(fake), ones)
            g_loss.backward()
            g_adam.step()
        print(f"epoch {epoch}: critic {c_loss:.3f}, generator {g_loss:.3f}")


if __name__ == "__main__":
    ps.run(train, "async_sgd", workers=2)
