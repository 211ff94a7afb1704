"""`ps.hogwild()` trains the module of `to_torch()` further, in two worker processes."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.sparse import HogwildClassifier, MatrixFactorization, SkipGram
from support.long_forms import but_slow

WORKERS = 2


class Task(NamedTuple):
    """A twin, what it learns from, row by row, and the loss of some of these rows."""

    twin: torch.nn.Module
    rows: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]
    lr: float


def linear() -> Task:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 20)).astype(np.float32)
    y = x @ rng.normal(size=20) > 0
    twin = HogwildClassifier("log_loss", max_iter=1, learning_rate="constant", threads=1).fit(x, y).to_torch()

    def loss(twin, x, y):
        return binary_cross_entropy_with_logits(twin(x)[:, 0], y)

    return Task(twin, (torch.from_numpy(x), torch.from_numpy(y).float()), loss, lr=0.5)


def factorisation() -> Task:
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 40, 2000), rng.integers(0, 30, 2000)
    numbers = (rng.normal(size=(40, 3)) @ rng.normal(size=(3, 30)))[users, items].astype(np.float32)
    twin = MatrixFactorization(factors=8, epochs=1, threads=1).fit(users, items, numbers).to_torch()

    def loss(twin, user, item, number):
        return mse_loss(twin(user, item), number)

    return Task(twin, (torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(numbers)), loss, lr=2.0)


def skipgram() -> Task:
    """Pairs of neighbours out of ten topics that share no word."""
    rng = np.random.default_rng(0)
    text = [[f"t{topic}_{word}" for word in rng.integers(0, 3, 8)] for topic in rng.integers(0, 10, 300)]
    learnt = SkipGram(vector_size=12, min_count=1, sample=0, epochs=1, threads=1).fit(text)
    numbers = torch.tensor([[learnt.wv.key_to_index[word] for word in words] for words in text])
    contexts, words = numbers[:, :-1].flatten(), numbers[:, 1:].flatten()
    drawn = torch.from_numpy(rng.integers(0, len(learnt.wv), (len(words), 5)))

    def loss(twin, context, word, drawn):
        score = (twin["inputs"](context)[:, None] * twin["outputs"](torch.cat([word[:, None], drawn], 1))).sum(-1)
        return -(logsigmoid(score[:, 0]) + logsigmoid(-score[:, 1:]).sum(1)).mean()

    return Task(learnt.to_torch(), (contexts, words, drawn), loss, lr=2.0)


def trained(task: Task) -> tuple[torch.nn.Module, Any]:
    start, rows, loss, lr = task

    def train(worker):  # goes to the workers by value, with all it uses: they cannot import this file
        batches = DataLoader(TensorDataset(*rows), batch_size=50, shuffle=True)
        twin, optimizer, batches = worker.prepare(start, torch.optim.SGD(start.parameters(), lr), batches)
        for _ in range(10):
            for batch in batches:
                optimizer.zero_grad()
                loss(twin, *batch).backward()
                optimizer.step()

    run = ps.run(train, ps.hogwild(), workers=WORKERS, timeout_s=60)
    twin = deepcopy(task.twin)
    twin.load_state_dict(run.state_dict)
    return twin, run


@pytest.mark.parametrize(
    "family", but_slow([linear, factorisation, skipgram], {linear}), ids=lambda family: family.__name__
)
def test_a_dense_copy_keeps_learning_in_two_processes(family: Callable[[], Task]) -> None:
    task = family()
    twin, run = trained(task)
    with torch.no_grad():
        before, after = (float(task.loss(module, *task.rows)) for module in (task.twin, twin))
    assert after < 0.7 * before
    for name, now in twin.named_parameters():
        assert torch.isfinite(now).all(), name
        assert (now != task.twin.get_parameter(name)).any(dim=-1).all(), name  # every row moved
    assert len(run.workers) == WORKERS
    assert all(worker.steps > 0 for worker in run.workers)
