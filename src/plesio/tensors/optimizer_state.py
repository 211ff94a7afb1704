"""The state of an optimizer at the server: what checkpoints keep of it, and what is carried from and to a user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import SGD

from plesio.errors import CheckpointError
from plesio.tensors.arena import Arena
from plesio.tensors.carrying import Carried, Kept, Part, TensorState, from_plain, is_small, plain
from plesio.tensors.optimizer_spec import full_name
from plesio.tensors.pass_optimizer import PassOptimizer
from plesio.tensors.several import parts_of

COUNTS = ("step", "mu_product")
"""The numbers in the state of an optimizer that is stepped directly."""


class StatefulOptimizer(PassOptimizer, Part):
    """One whose state outlives it."""

    def kept(self) -> Kept:
        held = [
            TensorState.of(self.state_of(position), parameter) for position, parameter in enumerate(self.parameters)
        ]
        swapped = [self.swapped_of(position) for position in range(len(held))]
        used = {key for one in held for key in one.whole}
        tensors = {f"optimizer {key}": arena.memory for key, arena in self.state_arenas.items() if key in used}
        for position, one in enumerate(held):
            small = {key: value for key, value in one.rest.items() if torch.is_tensor(value) and value.dim()}
            tensors |= {f"optimizer {key} of {position}": value for key, value in small.items()}
        return Kept(
            tensors,
            {
                "split": len(held),
                "tensors": [piece.tensors for piece in self._pieces],
                "whole": [[key for key in one.whole if key != own] for one, own in zip(held, swapped, strict=True)],
                "rest": [{key: plain(value) for key, value in one.rest.items()} for one in held],
                "groups": self.groups,
                "own": self._by_torch.own(),
                "swapped": [own if own in one.whole else "" for one, own in zip(held, swapped, strict=True)],
                "kind": self._named(),
            },
        )

    def restore(self, numbers: dict[str, Any]) -> None:
        """Restore the numbers of `kept`; the caller then fills its tensors. `CheckpointError` for another optimizer's."""
        kind = self._named()
        kept = str(numbers["kind"])
        ours = "torch." not in (kept[:6], kind[:6]) and kept.split(".")[-1] == kind.split(".")[-1]
        if kept != kind and not ours:  # a script's class has another module, depending on how the script was started
            raise CheckpointError(
                f"the checkpoint holds the state of {kept}, and this run prepared {kind}; prepare the same optimizer, or "
                "begin a new run and load weights.safetensors in the training function"
            )
        self.set_groups(numbers["groups"])
        self._by_torch.apply(self.groups)
        self._restore(numbers)

    def _restore(self, numbers: dict[str, Any]) -> None:
        """The state, and what the optimizer itself wrote into its groups."""
        if numbers["split"] > len(self.parameters):
            self.split()
        self._by_torch.take(numbers["own"])
        swapped = numbers["swapped"]
        self.known = None
        for position, parameter in enumerate(self.parameters):
            state: dict[str, Any] = {key: self._home(key)[position] for key in numbers["whole"][position]}
            state.update({key: from_plain(value) for key, value in numbers["rest"][position].items()})
            if self._give_up is not None:
                small = {
                    key: value for key, value in state.items() if is_small(value) and key in numbers["rest"][position]
                }
                state.update({key: self._small_home(position, key, value) for key, value in small.items()})
            if swapped[position]:
                state[str(self.swapped_of(position))] = torch.zeros_like(parameter)
            if state:
                self.optimizer.state[parameter] = state

    def numbers(self) -> Any:
        """What its steps change beside the tensors of its state, as plain values: quickly, for it is asked at each fold. By
        position, what is counted there, if there is a state. Of SGD, which counts nothing, how many positions have one."""
        if not self.directly:
            return self.kept().numbers
        ats = self.known or self.at()
        if self.known is not None and self._counts_nothing:
            return len(ats)
        states = [at.state for at in ats]
        return [[float(state[key]) for key in COUNTS if key in state] if state else None for state in states]

    def take(self, numbers: Any) -> None:
        """Go on from these numbers, with the tensors as they are."""
        self.known = None
        self._by_torch.take([])
        self._alike.clear()  # arenas have changed since
        if not self.directly:
            self._restore(numbers)
            return
        counts = numbers if isinstance(numbers, list) else [[]] * numbers
        if len(counts) > len(self.parameters):
            self.split()
        for position, counted in enumerate(counts):
            if counted is None:
                continue
            if self.kinds[self._group_of[position]] is SGD:
                self._momentum(position)
            elif not self.state_of(position):
                self._begin_moments(position)
            for key, value in zip(COUNTS, counted, strict=False):
                self.state_of(position)[key].fill_(value)

    def begin_from(self, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Start with copies of the state that a user's optimizer held; `arenas` hold the tensors of its keys."""
        held, self.known = carried.held, None
        if any(not held[piece.tensors[0]].same(held[other]) for piece in self._pieces for other in piece.tensors):
            self.split()  # one count would not do for them
        given = {key: self.select(arena) for key, arena in zip(carried.keys, arenas, strict=False)}
        for position, (piece, parameter) in enumerate(zip(self._pieces, self.parameters, strict=True)):
            first = held[piece.tensors[0]]
            state: dict[str, Any] = {key: copy.deepcopy(from_plain(value)) for key, value in first.rest.items()}
            for key in first.whole:
                swapped = key == self.swapped_of(position)
                own = torch.zeros_like(parameter) if swapped else self._home(key)[position]
                state[key] = own.copy_(given[key][position])
            if state:
                self.optimizer.state[parameter] = state

    def carried(self, workers: int = 1) -> Carried:
        """The state as a worker's optimizer would hold it; a count that goes with that of so many `workers`, divided by it."""
        held = [TensorState((), {})] * len(self._arena.layout.specs)
        for position, (piece, parameter) in enumerate(zip(self._pieces, self.parameters, strict=True)):
            state = self.state_of(position)
            if self.swapped_of(position) == "exp_avg" and "step" in state:
                state = {**state, "step": state["step"] / workers}
            for tensor in piece.tensors:
                held[tensor] = TensorState.of(state, parameter).packed()
        return Carried(tuple(held))

    def copy_state(self, carried: Carried, arenas: Sequence[Arena], swapped: Arena | None = None) -> None:
        """Copy the tensors that the keys of `carried` name; what look-ahead swaps for a worker's own is in `swapped`."""
        for key, arena in zip(carried.keys, arenas, strict=True):
            for position, piece in enumerate(self._pieces):
                source = swapped if key == self.swapped_of(position) else self.state_arenas.get(key)
                for tensor in piece.tensors:
                    if source is not None and key in carried.held[tensor].whole:
                        arena.views[tensor].copy_(source.views[tensor])

    def make_room(self, keys: Sequence[str], give_up: Callable[[str], None]) -> None:
        """For the state of these keys, of which look-ahead swaps none: from now on all of its tensors lie in arenas. `give_up` is
        told why one cannot."""
        for key in keys:
            if key not in self.swapped:
                self._home(key)
        self._give_up = give_up

    def _named(self) -> str:
        """The optimizers' classes, as a checkpoint names them."""
        return ", ".join(full_name(type(one)) for one in parts_of(self.optimizer))
