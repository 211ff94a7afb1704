"""Fashion-MNIST: a small convolutional network on 60,000 real pictures of 28 x 28 pixels.

    plesio compare examples/fashion.py --workers 4 --slow 0:4 --until accuracy=0.85 --budget-s 60
    python examples/fashion.py

The pictures are not part of this repository; the script says how to get them if it finds none.
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

DEBIAN = "/usr/share/datasets/fashion-mnist"
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
HOW_TO_GET = f"""\
no Fashion-MNIST here. On Debian or Ubuntu: apt-get install dataset-fashion-mnist. \
Elsewhere: put the files {", ".join(FILES)} (as they are or with .gz) into a folder and set PLESIO_FASHION to it."""

EPOCHS = 100
BATCH = 32
LEARNING_RATE = 0.03
JUDGED = 2000  # of the 10,000 test pictures: judging more would take the cores from the training


def folder() -> Path:
    """Where the pictures are: PLESIO_FASHION if it is set, or else where Debian's package puts them."""
    path = Path(os.environ.get("PLESIO_FASHION") or DEBIAN)
    if not all(any(path.glob(f"{name}*")) for name in FILES):
        raise SystemExit(f"{path}: {HOW_TO_GET}")
    return path


def read(path: Path, name: str) -> torch.Tensor:
    """One IDX file of bytes: two zeros, a type, the number of dimensions, their sizes, the values."""
    packed = path / f"{name}.gz"
    try:
        content = gzip.decompress(packed.read_bytes()) if packed.exists() else (path / name).read_bytes()
        dimensions = content[3]
        shape = np.frombuffer(content, ">u4", dimensions, offset=4)
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())
    except (OSError, EOFError, zlib.error, IndexError, ValueError) as error:
        raise SystemExit(f"{path}: {name} is damaged ({error}); get it again") from error


IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = (read(folder(), name) for name in FILES)


def build_model() -> nn.Module:
    """Two convolutions and a layer on top: 11,274 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


def as_input(images: torch.Tensor) -> torch.Tensor:
    """Bytes to numbers from -1 to 1, with a channel."""
    return images.unsqueeze(1) / 127.5 - 1


def train(worker: ps.Worker) -> None:
    """What every worker does: an ordinary PyTorch loop, until it is stopped."""
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    loader = DataLoader(TensorDataset(IMAGES, LABELS.long()), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for images, labels in loader:
            with worker.step():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(as_input(images)), labels)
                loss.backward()
                optimizer.step()
                worker.log(loss=loss)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Accuracy on pictures nobody trains on."""
    scores = model(as_input(TEST_IMAGES[:JUDGED]))
    return {"accuracy": (scores.argmax(1) == TEST_LABELS[:JUDGED]).float().mean().item()}


if __name__ == "__main__":
    run = ps.run(train, ps.async_sgd(), workers=4, evaluate=evaluate, until=ps.Until(accuracy=0.85, seconds=60))
    print(run)
