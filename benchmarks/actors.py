"""Frames/s of CartPole with actors and learners apart (examples/actors.py), against the same loop in one process.

    python benchmarks/actors.py --json FILE [--quick]

A frame takes 5 ms more, as that of a larger environment elsewhere would, so that four actors need no four cores. Both sides act
by the same policy and learn from as many frames a step. In one process acting and learning take turns; it does without plesio.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from _report import interleave, parser, report, row

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from actors import AGE, BATCH, EXAMPLE, UNROLL, Actor, Policy, learn, loss_of, optimizer_of

ACTORS, FRAME_S = 4, 0.005
NEVER = 501.0  # no episode is that long, so that the run makes all its steps


def alone(steps: int) -> float:
    """Frames/s of one process."""
    torch.manual_seed(0)
    policy, actor = Policy(), Actor(0, FRAME_S)
    optimizer = optimizer_of(policy)
    began_s = time.perf_counter()
    for _ in range(steps):
        items = [actor.unroll(policy)[0] for _ in range(BATCH)]
        batch = {name: torch.from_numpy(np.stack([one[name] for one in items])) for name in EXAMPLE}
        optimizer.zero_grad()
        loss_of(policy, batch).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return steps * BATCH * UNROLL / (time.perf_counter() - began_s)


def main() -> None:
    options = parser((__doc__ or "").partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    steps, runs = (2, 1) if options.quick else (12, options.runs)
    ages: list[float] = []

    def apart() -> float:
        _, found = learn("async_sgd", ACTORS, target=NEVER, steps=4 * steps, frame_s=FRAME_S)
        ages.append(found["age_max"])
        return found["frames_per_s"]

    rates = interleave({"one process": lambda: alone(steps), "apart": apart}, runs, "frames/s")
    rows = [
        row(
            f"{ACTORS} actors and 2 learners, 5 ms a frame",
            rates["apart"],
            "frames/s",
            against="one process",
            against_values=rates["one process"],
            target=">= 3.5",
        ),
        row("the oldest experience that was learned from", ages, "versions", target=f"<= {AGE}"),
    ]
    report("Actors and learners apart", rows, options.json)


if __name__ == "__main__":
    main()
