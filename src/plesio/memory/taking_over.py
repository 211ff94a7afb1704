"""Going on from what a checkpoint of another strategy keeps, or from another phase: the state of the user's optimizer goes to
where that steps now.

| it stepped     | and now steps at the server                  | and now steps in the workers           |
| -------------- | -------------------------------------------- | -------------------------------------- |
| at the server  | as it was; of the workers' momenta, the mean | each worker begins with a copy of it   |
| in the workers | that of the lowest worker                    | each worker goes on with its own       |

The master copy goes on where the server has one under both strategies, else it begins as the weights. State is float32 beside it,
and of the model's dtype in workers.
The state of an outer optimizer goes on where the new one is of the same class, and that of a correction where it is the same one.
What else a worker held (what packing left out) goes on where it sends and takes back in the same way.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from plesio.errors import CheckpointError
from plesio.memory.blocks import Blocks
from plesio.memory.folder import Folder
from plesio.memory.master import state_layout
from plesio.memory.saved import Kept
from plesio.strategy import Strategy
from plesio.tensors.arena import Arena, Kind, Layout
from plesio.tensors.carrying import Carried, TensorState, from_plain, is_whole, unchecked
from plesio.tensors.cut import cut
from plesio.tensors.outer_optimizer import kind_of
from plesio.transport.held import BEFORE, LEFT_OUT, parts_of

Own = dict[str, Any]
"""As in a worker's file (`plesio.worker.replicas.own`): the `kinds` of its optimizers, their state by the tensor's number."""


def take_over(blocks: Blocks, folder: Folder, was: Strategy, kept: Kept) -> dict[int, bytes]:
    """Have `folder` go on from what was kept under the strategy `was`; what each worker begins with."""
    now = blocks.strategy
    at_server = _at_server(kept, state_layout(was, Layout(cut(blocks.model.specs, was.send.fragments))))
    own = {
        worker: data for worker, data in kept.own.items() if not parts_of(data)
    }  # of several processes it stays there
    lowest = loaded(own[min(own)]) if own else None
    of_user = at_server if was.steps_at_server else lowest
    given = of_user if now.steps_at_server else at_server if was.outer.own_optimizer else None
    kinds = [spec.kind.__name__ for spec in blocks.specs]
    if given is not None and given["kinds"] == kinds:
        folder.begin_from(*carried_of(given["optimizer"], blocks.state_layout))
    elif given is not None and now.steps_at_server:
        raise CheckpointError(
            f"the checkpoint holds the state of {', '.join(given['kinds'])}, and this run prepared {', '.join(kinds)}; prepare "
            "the same, or begin a new run and load weights.safetensors in the training function"
        )
    both = {name: kept.numbers[name] for name in folder.state.going_on(was, now) if name in kept.numbers}
    folder.state.restore(both, kept.tensors)
    common = of_user if was.steps_at_server or was.outer.in_worker or now.outer.in_worker else None
    if common is not None and common is at_server:
        common = {**common, "optimizer": _in_dtype_of(blocks.ring[0].views, common["optimizer"])}
    return _for_workers(blocks, own, common, (was.send, was.adopt) == (now.send, now.adopt))


def lost(was: Strategy, now: Strategy, numbers: Mapping[str, Any], workers: int) -> Iterator[str]:
    """Which state of the server's, of these `numbers`, does not go on under the strategy `now`, and what else workers held."""
    kept = ", ".join(sorted({key for keys in numbers.get("optimizer", {}).get("whole", ()) for key in keys}))
    outer, instead = (kind_of(one.outer).__name__ if one.outer.own_optimizer else "" for one in (was, now))
    if kept and outer and outer != instead:
        yield f"the state of the outer {outer} ({kept}) is dropped, for {now.name} has {instead or 'none'}"
    if "look-ahead" in numbers and workers > 1:
        yield "each worker had a momentum of its own: their mean goes on"
    if "correction" in numbers and was.correct != now.correct:
        yield f"the state of the correction ({was.correct}) is dropped, for {now.name} has {now.correct}"
    if (was.send.codec is not None or was.adopt.blends) and (was.send, was.adopt) != (now.send, now.adopt):
        what = "workers' own parameters are" if was.adopt.blends else "what packing left out is"
        yield f"{what} dropped, for {now.name} sends or takes back otherwise"


def one_for_all(workers: Sequence[int], lowest: int | None, without: str) -> str:
    """Of the optimizers that stepped in `workers`, that of the `lowest` goes on for all; None: of none, for the reason `without`.
    What is said of it; empty if nothing is to be."""
    if lowest is None:
        return f"the state of the workers' optimizers is dropped, for {without}"
    others = ", ".join(str(worker) for worker in workers if worker != lowest)
    what = f"the state of the optimizer of worker {others} is dropped, for that of worker {lowest} is everybody's now"
    return what if others else ""


def _for_workers(blocks: Blocks, own: Mapping[int, bytes], common: Own | None, alike: bool) -> dict[int, bytes]:
    """What each worker begins with: the state of its `own` optimizer, or the one that all have in `common`; what else it held,
    if it sends and takes back `alike`."""
    begun: dict[int, bytes] = {}
    now = blocks.strategy
    if now.steps_at_server and not now.keeps_own and blocks.seats > 1:  # a lone worker has its random sources, too
        return begun
    of_all = b""
    for worker in range(blocks.seats):
        mine = loaded(own[worker]) if worker in own else None
        if (state := common or mine) is None:
            continue
        optimizer = {} if now.steps_at_server else state["optimizer"]
        steps = {
            "kinds": state["kinds"],
            "optimizer": optimizer,
            "replica": mine["replica"] if mine and alike else None,
        }
        if mine is None:
            of_all = begun[worker] = of_all or _saved(steps)
        else:
            begun[worker] = _saved({**mine, **steps})
    return begun


def _at_server(kept: Kept, layout: Layout) -> Own | None:
    """The state of the optimizer that stepped at the server, as a worker would hold it; None if there was none."""
    numbers = kept.numbers.get("optimizer")
    if numbers is None:
        return None
    known = {key for keys in numbers["whole"] for key in keys}
    views = {key: Arena(layout, kept.tensors[f"optimizer {key}"]).views for key in known}
    ahead = kept.numbers.get("look-ahead")
    momenta = _mean_momentum(kept, layout).views if ahead is not None else ()
    states: dict[int, dict[str, Any]] = {}
    for position, tensors in enumerate(numbers["tensors"]):
        for one in tensors:
            state = {key: views[key][one] for key in numbers["whole"][position]}
            for key, value in numbers["rest"][position].items():
                small = kept.tensors.get(f"optimizer {key} of {position}")
                state[key] = from_plain(value) if small is None else small.clone()  # of what it is a piece of, no more
            if swapped := numbers["swapped"][position]:
                state[swapped] = momenta[one]
            if ahead is not None and swapped == "exp_avg":
                state["step"] = state["step"] / ahead["workers"]
            states[one] = state
    return {"kinds": [one.rpartition(".")[2] for one in numbers["kind"].split(", ")], "optimizer": states}


def _mean_momentum(kept: Kept, layout: Layout) -> Arena:
    """Of the workers that had one: that of a worker that left is zeros."""
    mean = Arena(layout, kept.tensors["sum of momenta"].clone())
    those = [bool(one.any()) for key, one in kept.tensors.items() if key.startswith("momentum ")]
    for flat in mean.of_kind(Kind.TRAINED):
        flat /= max(1, sum(those))
    return mean


def carried_of(states: Mapping[int, dict[str, Any]], layout: Layout) -> tuple[Carried, tuple[Arena, ...]]:
    """These states, by the tensor's number, as they are handed over to where tensors lie like this."""
    views = Arena.private(layout).views
    states = _in_dtype_of(views, states)
    carried = Carried(tuple(TensorState.of(states.get(place, {}), view).packed() for place, view in enumerate(views)))
    arenas = tuple(Arena.private(layout) for _ in carried.keys)
    for key, arena in zip(carried.keys, arenas, strict=True):
        for place, one in enumerate(carried.held):
            if key in one.whole:
                arena.views[place].copy_(states[place][key])
    return carried, arenas


def _in_dtype_of(views: Sequence[torch.Tensor], states: Mapping[Any, Any]) -> dict[Any, Any]:
    """The states, with what is of their parameters' size in the dtype that these have where it goes on."""
    found = dict(states)
    for place, view in enumerate(views):
        for key, value in states.get(place, {}).items():
            if torch.is_tensor(value) and is_whole(key, value.to(view.dtype), view):
                found[place] = {**found[place], key: value.to(view.dtype)}
    return found


def without_last(data: bytes) -> bytes:
    """What a worker held, as it is after its last contribution came too late."""
    own = loaded(data)
    if own["replica"] and BEFORE in own["replica"]:
        own["replica"][LEFT_OUT] = own["replica"].pop(BEFORE)
    return _saved(own)


def loaded(data: bytes) -> Own:
    own: Own = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return own


def _saved(own: Own) -> bytes:
    file = io.BytesIO()
    with unchecked():
        torch.save(own, file)
    return file.getvalue()
