"""CartPole with actors and learners apart, in the shape of IMPALA: four processes act, two learn under any strategy.

    pip install 'plesio[actors]'          # gymnasium
    python examples/actors.py             # about a minute on 2 cores; --strategy sync_sgd, --actors 8, --quick

Each actor follows the newest policy of the run (`reader.follow`) and puts what it saw into a `ps.Queue`, with the version that it
acted by. Learners take batches of bounded age from there. V-trace makes up for the age that is left (Espeholt et al. 2018,
arXiv 1802.01561).
"""

from __future__ import annotations

import argparse
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import plesio as ps

UNROLL, BATCH = 20, 16  # steps of an item, items of a learner's step
DISCOUNT, ENTROPY, REWARD = 0.99, 0.01, 0.1  # rewards are scaled, so that values are of the size of 10
POLICY_AGE, AGE = 1, 8  # in versions: of the policy that acts, of what is learned from
EXAMPLE = {
    "observations": np.zeros((UNROLL + 1, 4), np.float32),
    "actions": np.zeros(UNROLL, np.int64),
    "log_probs": np.zeros(UNROLL, np.float32),  # of these actions, by the policy that acted
    "rewards": np.zeros(UNROLL, np.float32),
    "goes_on": np.zeros(UNROLL, np.float32),  # 0 where an episode ended
    "episode": np.float32(0),  # the return of the last episode that ended here, or NaN
}


class Policy(nn.Module):
    """The logits of both actions, and the value."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 3)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.head(self.body(observations))
        return found[..., :2], found[..., 2]


class Actor:
    """An environment and where its episode is. A frame takes at least `frame_s`: it stands for a larger one elsewhere."""

    def __init__(self, seed: int, frame_s: float = 0.0) -> None:
        self._frame_s = frame_s
        self._environment = gymnasium.make("CartPole-v1")
        self._observation, _ = self._environment.reset(seed=seed)
        self._return = 0.0

    def unroll(self, policy: nn.Module, version: Callable[[], int] = lambda: 0) -> tuple[dict[str, Any], int]:
        """Act for some steps. What was seen, and the version at the first step: the policy may move on at each."""
        item = {name: value.copy() for name, value in EXAMPLE.items()}
        item["episode"] = np.float32("nan")
        for step in range(UNROLL):
            with torch.inference_mode():
                log_probs = policy(torch.from_numpy(self._observation))[0].log_softmax(-1)
            if step == 0:
                oldest = version()
            action = int(torch.multinomial(log_probs.exp(), 1))
            item["observations"][step], item["actions"][step] = self._observation, action
            item["log_probs"][step] = log_probs[action]
            time.sleep(self._frame_s)
            self._observation, reward, fell, in_time, _ = self._environment.step(action)
            self._return += float(reward)
            item["rewards"][step], item["goes_on"][step] = REWARD * float(reward), not (fell or in_time)
            if fell or in_time:
                item["episode"] = np.float32(self._return)
                self._observation, _ = self._environment.reset()
                self._return = 0.0
        item["observations"][UNROLL] = self._observation
        return item, oldest


def act(address: str, queue: ps.Queue, seed: int, frame_s: float) -> None:
    """What an actor's process does, until it is ended."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    policy, actor = Policy(), Actor(seed, frame_s)
    with ps.read(address) as reader, reader.follow(policy, max_age=POLICY_AGE) as following:
        while True:
            item, version = actor.unroll(policy, lambda: following.version)
            queue.put(item, version=version)


def loss_of(policy: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """That of an actor-critic with V-trace's targets."""
    logits, values = policy(batch["observations"])
    log_probs = logits[:, :-1].log_softmax(-1)
    taken = log_probs.gather(-1, batch["actions"][..., None])[..., 0]
    with torch.no_grad():
        ratios = (taken - batch["log_probs"]).exp().clamp(max=1.0)
        discounts = DISCOUNT * batch["goes_on"]
        errors = ratios * (batch["rewards"] + discounts * values[:, 1:] - values[:, :-1])
        ahead, corrections = torch.zeros(len(values)), []
        for step in reversed(range(UNROLL)):
            ahead = errors[:, step] + discounts[:, step] * ratios[:, step] * ahead
            corrections.append(ahead)
        targets = values.clone()
        targets[:, :-1] += torch.stack(corrections[::-1], dim=1)
        advantages = ratios * (batch["rewards"] + discounts * targets[:, 1:] - values[:, :-1])
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return -(taken * advantages).mean() + 0.5 * F.mse_loss(values[:, :-1], targets[:, :-1]) - ENTROPY * entropy


def optimizer_of(policy: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(policy.parameters(), lr=0.002)


def train(worker: ps.Worker, queue: ps.Queue, target: float, steps: int) -> None:
    """A learner: an ordinary loop, whose data come from the queue."""
    policy = Policy()
    policy, optimizer = worker.prepare(policy, optimizer_of(policy))
    returns: deque[float] = deque(maxlen=50)
    for _ in worker.steps(steps):
        batch = queue.get_batch(BATCH, version=worker.version, max_age=AGE)
        optimizer.zero_grad()
        loss = loss_of(policy, batch)
        worker.count(samples=BATCH * UNROLL)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        returns.extend(batch["episode"][~batch["episode"].isnan()].tolist())
        worker.log(queue.stats("queue/"), loss=loss)
        if returns:
            worker.log({"return": sum(returns) / len(returns)})
        if len(returns) == returns.maxlen and sum(returns) / len(returns) >= target:
            worker.stop(f"the mean return of {len(returns)} episodes is {target:g}")


@contextmanager
def acting(actors: int, address: str, queue: ps.Queue, frame_s: float) -> Iterator[None]:
    """So many actors, inside. Then they are killed, wherever they are: a queue bears that."""
    spawn = get_context("spawn")
    processes = [spawn.Process(target=act, args=(address, queue, seed, frame_s)) for seed in range(actors)]
    for one in processes:
        one.start()
    try:
        yield
    finally:
        for one in processes:
            one.kill()
            one.join()


def learn(
    strategy: str, actors: int, *, target: float = 450.0, steps: int = 4000, frame_s: float = 0.0
) -> tuple[ps.Run, dict[str, float]]:
    """The run, and what became of the experience: the queue's counts, and `frames_per_s` that were learned from."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    queue = ps.Queue(EXAMPLE, capacity=2 * BATCH)
    with acting(actors, address, queue, frame_s):
        run = ps.run(
            partial(train, queue=queue, target=target, steps=steps), strategy, workers=2, readers=address, threads=1
        )
    told = [one for one in run.logged if "queue/got" in one.metrics]
    items, seconds = (told[-1].metrics["queue/got"] - told[0].metrics["queue/got"], told[-1].time_s - told[0].time_s)
    return run, {**queue.stats(), "frames_per_s": items * UNROLL / seconds}


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--strategy", default="async_sgd")
    options.add_argument("--actors", type=int, default=4)
    options.add_argument("--frame-ms", type=float, default=0.0, help="what a frame takes at least")
    options.add_argument("--quick", action="store_true", help="for tests")
    given = options.parse_args()
    run, found = learn(
        given.strategy, given.actors, frame_s=given.frame_ms / 1000, target=60.0 if given.quick else 450.0
    )
    print(run)
    returns = [one.metrics["return"] for one in run.logged if "return" in one.metrics]
    print(f"return: {returns[0]:.0f} at first, {returns[-1]:.0f} at last")
    print(f"{found['frames_per_s']:,.0f} frames/s were learned from, made by {given.actors} actors")
    print(
        f"age of the experience: mean {found['age_mean']:.1f}, max {found['age_max']:.0f} versions, where at most {AGE} are "
        f"allowed; {found['dropped_old']:.0f} of {found['put']:.0f} items were older, and were dropped"
    )


if __name__ == "__main__":
    main()
