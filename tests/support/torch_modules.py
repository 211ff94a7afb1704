"""The modules of torch's own tests, each trained by plain torch and by a run: `python -m support.torch_modules RECIPE WORKERS`.

A program, for torch's table freezes torch's settings where it is imported. It prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

import plesio as ps

STEPS = 3
EACH = 2  # inputs of a module; of some there are hundreds


def inputs_of(info: Any) -> list[Any]:
    """How a module is built and called."""
    made = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
    return [one for one in made if any(True for _ in built(info, one).parameters())][:EACH]


def built(info: Any, one: Any) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = info.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
    return module.train()


def loop(model: nn.Module, optimizer: Any, given: Any) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        out = model(*given.args, **given.kwargs)
        first: torch.Tensor = out if isinstance(out, torch.Tensor) else out[0]
        first.square().mean().backward()
        optimizer.step()


def parts(info: Any, one: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = built(info, one)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(worker: ps.Worker, info: Any, one: Any) -> None:
    model, optimizer = worker.prepare(*parts(info, one))
    loop(model, optimizer, one.forward_input)


def main(recipe: str, workers: int) -> None:
    from torch.testing._internal.common_modules import (
        module_db,  # not before: whoever looks for docstrings imports this, too
    )

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # as a worker has it; the last bits of a sum go by their number
    found: dict[str, Any] = {"equal": [], "unlike": [], "refused": {}}
    for info in module_db:
        for number, one in enumerate(inputs_of(info)):
            name = f"{info.name} {number}"
            try:
                run = ps.run(
                    partial(train, info=info, one=one), recipe, workers=workers, engine=ps.Simulated("uniform")
                )
            except ps.PlesioError as error:
                found["refused"][name] = str(error)
                continue
            model, optimizer = parts(info, one)
            loop(model, optimizer, one.forward_input)
            same = all(torch.equal(run.state_dict[key], value) for key, value in model.state_dict().items())
            found["equal" if same else "unlike"].append(name)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
