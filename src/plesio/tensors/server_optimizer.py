"""The user's optimizer, rebuilt at the server over flat tensors.

An elementwise optimizer (SGD, Adam, ...) gets one flat parameter per segment, and steps it at memory speed with the same
bits. Any other optimizer (one that uses a whole tensor, such as Adafactor or Muon, or an unknown one) gets the model's
tensors one by one.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import optim
from torch.optim import Optimizer

from plesio.tensors import adam, sgd
from plesio.tensors.adam import Numbers, adam_step, begin, count, decouples, numbers_of
from plesio.tensors.adam import keys as moments
from plesio.tensors.arena import REMEMBERED_MAX, Arena, Kind, flattened
from plesio.tensors.carrying import is_small, is_whole
from plesio.tensors.one_pass import LARGE
from plesio.tensors.optimizer_spec import Groups, OptimizerSpec
from plesio.tensors.pieces import StepPiece, kinds_of, pieces_of
from plesio.tensors.rate_scale import NORMALISING, Scales
from plesio.tensors.rows import NO_ROWS
from plesio.tensors.sgd import MOMENTUM, sgd_step
from plesio.tensors.torch_step import TorchStep


class At(NamedTuple):
    """At one of an optimizer's positions: the state of what lies there (empty before its first step), the key that look-ahead
    swaps for each worker's own, the settings of its group, the group's number, and whether it is a table."""

    state: dict[str, Any]
    swapped: str | None
    group: dict[str, Any]
    number: int
    table: bool


class OwnMomentum(NamedTuple):
    """What look-ahead swaps in for one worker, and the positions where that has begun."""

    arena: Arena
    begun: set[int]


class ServerOptimizer:
    """A user's optimizer over the trained segments of `arena`, whose values some optimizers read when they are built."""

    def __init__(self, specs: Sequence[OptimizerSpec], arena: Arena, new_arena: Callable[[], Arena]) -> None:
        given = [group for spec in specs for group in spec.groups]
        self.kinds = kinds_of(specs)
        """Of which class each group's optimizer is."""
        self._arena = arena
        self._new_arena = new_arena
        self.state_arenas: dict[str, Arena] = {}
        """Where the tensors of its state lie, by key."""
        self.swapped: list[str | None] = [None] * len(given)
        """By group: the key that look-ahead swaps for each worker's own."""
        self._momenta: Sequence[OwnMomentum] = ()
        self.scales = Scales(self.kinds)
        """By group the factor of the learning rate, of a scale and a share."""
        self.known: list[At] | None = None
        """What `at` found, if that holds still."""
        self._step_on(pieces_of(arena.layout, self.kinds, given))
        self._give_up: Callable[[str], None] | None = None
        self.copies_always = False
        """Whether versions are changed behind this optimizer's back, so that what it left alone is to be copied."""
        self._flat = all(piece.flat for piece in self._pieces)
        dense = zip(self.parameters, self._pieces, strict=True)
        elements = sum(one.numel() for one, piece in dense if not piece.table)
        self._by_torch = TorchStep(specs, self._pieces, self.parameters, elements >= LARGE)
        self.optimizer = self._by_torch.optimizer
        self.large = elements >= LARGE and all(one.is_cpu for one in self.parameters)
        """Whether its arithmetic is that of compiled kernels, with them or without."""
        self._sent: dict[int, Groups] = {}  # by worker
        self.set_groups(given)
        self._move_state()  # some (Adagrad) allocate state before their first step

    def _step_on(self, pieces: list[StepPiece]) -> None:
        self._pieces = pieces
        self._selected: dict[int, list[torch.Tensor]] = {}
        self._lacking: dict[int, list[bool]] = {0: [False] * len(pieces)}  # by absent tensors: which pieces
        self._alike: dict[int, set[int]] = {}  # by position that was left alone: the arenas that have its values
        self._table_positions = [(at, piece.place) for at, piece in enumerate(pieces) if piece.table]
        self._group_of = [piece.group for piece in pieces]
        self.parameters = [torch.nn.Parameter(one, requires_grad=False) for one in self.select(self._arena)]
        of_one_type = all(one.dtype == torch.float32 for one in self.parameters)
        self._whole = of_one_type and all(one.flat and not one.split for one in pieces)  # as kernels want it

    def select(self, arena: Arena) -> list[torch.Tensor]:
        """The tensors of `arena` that this optimizer steps on, in the order of its parameters."""
        known = self._selected.get(id(arena))
        if known is None:
            known = [piece.of(arena) for piece in self._pieces]
            self._selected[id(arena)] = known
        return known

    def sent_groups(self, worker: int, groups: Groups) -> None:
        """Fold `worker`'s contributions with these hyper-parameters from now on (it may have a scheduler)."""
        self._sent[worker] = self._given if groups == self._given else groups

    def change_groups(self, change: Callable[[Groups], Groups]) -> None:
        """Change the settings of all groups, whoever sent them."""
        sent = self._sent
        self.set_groups(change(self._given))
        for worker, groups in sent.items():
            self.sent_groups(worker, change(groups))

    def step_as(self, worker: int, absent: int = 0) -> None:
        """Step with the settings of `worker`, without these tensors; others may be at another point of their schedules."""
        if absent and self.has_to_split(absent):
            self.split()
        groups = self._sent.get(worker, self._given)
        if groups is not self._given:
            self.set_groups(groups)

    def set_groups(self, groups: Groups) -> None:
        self._given = groups
        self.groups = self._by_torch.as_set(groups)
        self.known = None
        self.directly = self._flat and all(map(_directly, self.kinds, groups))
        """Whether its arithmetic is plesio's own, which leaves gradients as they are."""
        self._counts_nothing = all(kind is optim.SGD for kind in self.kinds)
        self._decay = [
            issubclass(kind, NORMALISING) and decouples(one) for kind, one in zip(self.kinds, groups, strict=True)
        ]

    def step(
        self,
        target: Arena,
        current: Arena,
        gradient: Arena,
        scales: Sequence[float],
        absent: int = 0,
        rows: Mapping[int, torch.Tensor] = NO_ROWS,
        share: float = 1.0,
        own: OwnMomentum | None = None,
    ) -> None:
        """`target` = `current` after one step with `gradient`, at `scales` times the groups' learning rates; both may be one.

        Tables are the same in both; their gradients are in `rows`, by tensor.

        The `absent` tensors (`plesio.tensors.tensor_set`) are left alone, with their state; they are not in parts of pieces.
        Weights that decay by themselves do so by their `share` of the workers, k/N (docs/decisions/0006). `own`: what look-ahead
        swaps in.
        """
        lacking = self._left_alone(absent) if absent or self._alike else self._lacking[0]
        if own is not None:
            self._swap_in(own, lacking)
        if self.directly:
            self._step_directly(target, current, gradient, scales, lacking, share, own)
            return
        if target is not current and not absent:
            target.copy_from(current, Kind.TRAINED)
        elif target is not current:
            for position, (new, old) in enumerate(zip(self.select(target), self.select(current), strict=True)):
                if lacking[position]:
                    self.leave(position, target, current)
                elif not self._pieces[position].table:
                    new.copy_(old)
        for parameter, weight, slope, lacks in zip(
            self.parameters, self.select(target), self.select(gradient), lacking, strict=True
        ):
            parameter.data = weight
            parameter.grad = None if lacks else slope
        for position, place in self._table_positions:
            self.parameters[position].grad = rows.get(place)
        self._by_torch.step(self.groups, scales, self._decay, share)
        self._move_state()
        if own is not None:
            self._swap_out(own, lacking)

    # What look-ahead swaps

    def swap(self, keys: list[str | None], momenta: Sequence[OwnMomentum]) -> None:
        """By group the key, and what there is of each worker."""
        self.swapped, self._momenta = keys, momenta

    def _swap_in(self, own: OwnMomentum, lacking: Sequence[bool]) -> None:
        for position, (at, momentum) in enumerate(zip(self.at(), self.select(own.arena), strict=True)):
            if at.swapped in at.state:
                damped = at.group.get("dampening")  # torch does not dampen a first gradient: None makes it start one
                at.state[at.swapped] = momentum if not damped or position in own.begun else None
            if self.directly and at.swapped is not None and at.group.get("momentum") and not lacking[position]:
                own.begun.add(position)  # its first one is made there

    def _swap_out(self, own: OwnMomentum, lacking: Sequence[bool]) -> None:
        """At its first step torch's optimizer makes a momentum itself: copy it."""
        for position, (at, momentum) in enumerate(zip(self.at(), self.select(own.arena), strict=True)):
            if at.swapped is None or lacking[position] or (value := at.state.get(at.swapped)) is None:
                continue
            if value.data_ptr() != momentum.data_ptr():
                at.state[at.swapped] = momentum.copy_(value)
            if at.group.get("momentum"):
                own.begun.add(position)

    def pieces_lacking(self, absent: int) -> list[bool]:
        """By position, whether all of it is absent."""
        known = self._lacking.get(absent)
        if known is None:
            if len(self._lacking) > REMEMBERED_MAX:  # as where each step uses other tensors
                self._lacking = {0: self._lacking[0]}
            known = self._lacking[absent] = [absent & piece.bits == piece.bits for piece in self._pieces]
        return known

    def _left_alone(self, absent: int) -> list[bool]:
        """By position, whether a step that is about to be made leaves it alone."""
        lacking = self.pieces_lacking(absent)
        if self._alike:
            self._alike = {position: alike for position, alike in self._alike.items() if lacking[position]}
        return lacking

    def leave(self, position: int, target: Arena, current: Arena) -> None:
        """What lies there is in `target` as in `current`; copied, unless it has not moved since it was."""
        if target is current or self._pieces[position].table:
            return
        alike = self._alike.setdefault(position, {id(current)})
        if id(target) not in alike or self.copies_always:
            self.select(target)[position].copy_(self.select(current)[position])
            alike.add(id(target))

    def has_to_split(self, absent: int) -> bool:
        """Whether these are only a part of the tensors that are stepped on as one."""
        return absent not in self._lacking and any(0 < absent & piece.bits < piece.bits for piece in self._pieces)

    def split(self) -> None:
        """Step on each of the model's tensors by itself from now on."""
        pieces, parameters, states = self._pieces, self.parameters, dict(self.optimizer.state)
        was = [position for position, piece in enumerate(pieces) for _ in piece.tensors]
        self._step_on([part for piece in pieces for part in piece.parts()])
        self.optimizer.state = defaultdict(dict)
        self.known = None
        for own in self._momenta:
            begun = {new for new, old in enumerate(was) if old in own.begun}
            own.begun.clear()
            own.begun.update(begun)
        for index, group in enumerate(self.optimizer.param_groups):
            group["params"] = [one for one, of in zip(self.parameters, self._group_of, strict=True) if of == index]
        for position, (parameter, old) in enumerate(zip(self.parameters, was, strict=True)):
            for key, value in states.get(parameters[old], {}).items():
                if not is_whole(key, value, parameters[old]):
                    part = copy.deepcopy(value)
                else:
                    own = key == self.swapped_of(position)
                    part = torch.zeros_like(parameter) if own else self._home(key)[position]
                self.optimizer.state[parameter][key] = part

    def _step_directly(
        self,
        target: Arena,
        current: Arena,
        gradient: Arena,
        scales: Sequence[float],
        lacking: Sequence[bool],
        share: float,
        own: OwnMomentum | None,
    ) -> None:
        momenta = self.select(own.arena) if own is not None else None
        tensors = zip(self.select(target), self.select(current), self.select(gradient), strict=True)
        for position, (new, old, slope) in enumerate(tensors):
            number = self._group_of[position]
            group = self.groups[number]
            rate = float(group["lr"]) * scales[number]
            mine = momenta[position] if momenta is not None else None
            if lacking[position]:
                self.leave(position, target, current)
            elif self.kinds[number] is optim.SGD:
                momentum, first = self._momentum(position, mine) if group["momentum"] else (None, False)
                sgd_step(new, old, slope, momentum, first, group, rate)
            else:
                adam_step(new, old, slope, *self._counted(position, rate, share, mine))

    def _rate(self, position: int, scales: Sequence[float]) -> float:
        group = self._group_of[position]
        return float(self.groups[group]["lr"]) * scales[group]

    def _momentum(self, position: int, own: torch.Tensor | None = None) -> tuple[torch.Tensor | None, bool]:
        """SGD's momentum, if it has one, and whether this gradient is its first; a new one that look-ahead swaps is a worker's
        `own`."""
        if not self.groups[self._group_of[position]]["momentum"]:
            return None, False
        state = self.optimizer.state[self.parameters[position]]
        first = state.get(MOMENTUM) is None
        if first:
            state[MOMENTUM] = self._new_state(position, MOMENTUM, own)
        return state[MOMENTUM], first

    def _counted(
        self, position: int, rate: float, share: float, own: torch.Tensor | None = None
    ) -> tuple[dict[str, Any], Numbers]:
        """Adam's state, and the numbers of its next step."""
        group, at = self.group_of(position), self._group_of[position]
        state = self.optimizer.state[self.parameters[position]]
        if not state:
            keys = self._begin_moments(position, own)
            for key in keys if not self._goes_on else ():
                state[key].zero_()
        count(state, group)
        return state, numbers_of(state, group, rate, rate * share**0.25 if self._decay[at] else rate, self.large)

    def _begin_moments(self, position: int, own: torch.Tensor | None = None) -> tuple[str, ...]:
        """Begin Adam's state, with moments as they lie there; the keys of these."""
        state, keys = self.optimizer.state[self.parameters[position]], moments(self.group_of(position))
        begin(self.kinds[self._group_of[position]], state)
        for key in keys:
            state[key] = self._new_state(position, key, own)
        return keys

    def numbers_of(self, position: int) -> Numbers:
        """Adam's, of the last step, at the full learning rate."""
        group = self.group_of(position)
        return numbers_of(self.state_of(position), group, group["lr"], group["lr"], self.large)

    @property
    def _goes_on(self) -> bool:
        """Whether what comes was begun by a process that died."""
        return False

    def _new_state(self, position: int, key: str, own: torch.Tensor | None) -> torch.Tensor:
        if self.swapped_of(position) != key:
            return self._home(key)[position]
        return torch.empty_like(self.parameters[position].data) if own is None else own

    def _move_state(self) -> None:
        """Move the optimizer's state, made at its first step, into arenas; it stays there."""
        for position, parameter in enumerate(self.parameters):
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if is_whole(key, value, parameter) and key != self.swapped_of(position):
                    home = self._home(key)[position]
                    if value.data_ptr() != home.data_ptr():
                        state[key] = home.copy_(value)
                elif self._give_up is not None and is_small(value) and not is_whole(key, value, parameter):
                    state[key] = self._small_home(position, key, value).copy_(value)

    def _small_home(self, position: int, key: str, value: torch.Tensor) -> torch.Tensor:
        """Where a tensor that is smaller than its parameter lies: at the beginning of that one's place."""
        place = self._home(key)[position]
        if value.nbytes > place.nbytes:
            if self._give_up is not None:
                self._give_up(f"the optimizer keeps {key!r}, which is larger than its parameter")
            return value
        return flattened(place).view(torch.uint8)[: value.nbytes].view(value.dtype).view(value.shape)

    def _home(self, key: str) -> list[torch.Tensor]:
        if key not in self.state_arenas:
            if self._give_up is not None:
                self._give_up(f"the optimizer began to keep {key!r} after the run had begun")
            self.state_arenas[key] = self._new_arena()
        return self.select(self.state_arenas[key])

    def group_of(self, position: int) -> dict[str, Any]:
        """The hyper-parameters of parameter `position`, as the user gave them."""
        return self.groups[self._group_of[position]]

    def at(self) -> list[At]:
        """What there is at each position."""
        if self.known is not None:
            return self.known
        state, groups, swapped = self.optimizer.state, self.groups, self.swapped
        ats = [
            At(state.get(parameter, {}), swapped[piece.group], groups[piece.group], piece.group, piece.table)
            for parameter, piece in zip(self.parameters, self._pieces, strict=True)
        ]
        if all(at.state for at in ats):  # else it is made yet
            self.known = ats
        return ats

    def swapped_of(self, position: int) -> str | None:
        return self.swapped[self._group_of[position]]

    def state_of(self, position: int) -> dict[str, Any]:
        """The state of parameter `position`; empty before its first step."""
        state: dict[str, Any] = self.optimizer.state.get(self.parameters[position], {})
        return state


def _directly(kind: type[Optimizer], group: dict[str, Any]) -> bool:
    return sgd.steps_directly(kind, group) or adam.steps_directly(kind, group)
