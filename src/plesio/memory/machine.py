"""The memory of a run that has a model: blocks that the workers map, and what the server does with them."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from plesio.core.events import Fold, Forget, Hold, Share, Show, Switch
from plesio.errors import SharedMemoryError
from plesio.host.memory import SharedBlock
from plesio.host.recovery_log import RecoveryLog
from plesio.masking.words import SITE_BYTES
from plesio.memory import saved
from plesio.memory.blocks import MEANS, Blocks
from plesio.memory.folder import Folder, Parts, build_folder
from plesio.memory.momenta import keeps_momentum
from plesio.memory.own_weights import OwnWeights
from plesio.memory.port import Kept, Memory
from plesio.memory.row_servers import RowServers
from plesio.memory.row_tables import HASH
from plesio.memory.surviving import Surviving
from plesio.memory.taking_over import lost, one_for_all, take_over
from plesio.protocol.payloads import WORDS
from plesio.protocol.worker import Answer, Beginning, Contribution, GoOn
from plesio.strategy.answers import Codec
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import ALL_PARTS, Arena, Kind, Lies
from plesio.tensors.carrying import Carried
from plesio.tensors.checksum import weights_hash, window_checksum
from plesio.tensors.finite import are_finite
from plesio.tensors.packing import Packing
from plesio.tensors.pieces import kept_keys
from plesio.tensors.tensor_set import of_bits
from plesio.transport.doorbell import Located
from plesio.transport.held import Held

if TYPE_CHECKING:
    from plesio.memory.masked_sums import MaskedSums

EVALUATOR, ENGINE = -1, -2
"""Readers that are no workers."""


class Machine(Memory):
    """Does in `blocks` what the sequencer decides; `in_one_process`: workers run here, from one request to the next. `rows`: of
    tables, if other processes hold them. `log`: what another process goes on from when this one dies."""

    def __init__(
        self,
        blocks: Blocks,
        in_one_process: bool = False,
        rows: RowServers | None = None,
        log: RecoveryLog | None = None,
    ) -> None:
        self._log = log
        self._once: Callable[[Callable[[], Any]], Any] = log.once if log is not None else operator.call
        self.blocks = blocks
        self._in_one_process = in_one_process  # what workers hold is left at every exchange
        self._count_bytes()
        self.own = OwnWeights(blocks, in_one_process, self._once) if blocks.gives_back_mean else None
        self._absent = [b""] * blocks.seats  # in what each worker sent last
        self._parts = [ALL_PARTS] * blocks.seats  # that it was of
        self._sums = _masked_sums(blocks)
        several = blocks.layout.parts > 1 or len(blocks.phases) > 1
        self._one_by_one = several or self._sums is not None  # contributions are not all as large
        self._number = [0] * blocks.seats  # of what each worker sent last; 0: nothing, or it is gone
        self._finite = [True] * blocks.seats  # whether that was
        self._among = blocks.workers  # who share learning rates
        self._places = [0] * blocks.seats  # the buffer that each was shown last
        self._final: int | None = None
        self._folder: Folder | None = None
        if blocks.rows:
            log_of_rows = log if blocks.rows_survive else None
            self.rows = rows or RowServers.here(blocks.rows, blocks.strategy.rows.at_once, log_of_rows)

    def _count_bytes(self) -> None:
        strategy = self.blocks.strategy
        self.push_bytes = self._bytes_by(strategy.send.codec)
        self.answer_bytes = self._bytes_by(strategy.adopt.codec)
        if strategy.send.secure is not None:
            self.push_bytes[WORDS] = self.answer_bytes[WORDS] = SITE_BYTES * self.blocks.seats

    def _bytes_by(self, codec: Codec | None) -> dict[int, int]:
        """By part of the model."""
        layout = self.blocks.layout
        of = Packing(layout, codec).nbytes if codec is not None else layout.payload_bytes
        return {part: of(part) for part in (ALL_PARTS, *range(layout.parts))}

    @property
    def plain_bytes(self) -> int:
        return 0 if self.row_bytes else self.blocks.layout.payload_bytes()

    @property
    def row_bytes(self) -> int:
        rows = self._folder.row_bytes if self._folder is not None else 0
        return rows + self.rows.nbytes if self.rows is not None else rows

    @property
    def shared_bytes(self) -> int:
        return self.blocks.shared_bytes + sum(slots.nbytes for slots in self.blocks.rows)

    @property
    def folder(self) -> Folder:
        assert self._folder is not None, "training has begun"
        return self._folder

    @property
    def current(self) -> Arena:
        """The global parameters as the last fold left them; the next one writes there. Where they are the workers', as they were
        seen last."""
        return self.folded if self.own is None else self.own.parameters

    @property
    def folded(self) -> Arena:
        """What the last fold made: the parameters, or the mean that workers step by."""
        return self.blocks.versions.buffers[self.blocks.versions.current]

    # Beginning

    def take_news(self) -> str:
        return self._sums.take_news() if self._sums is not None else ""

    @property
    def note(self) -> str:
        after, idle = self.blocks.after_step, self.blocks.servers > 1 and not self.blocks.rows
        notes = [f"after each step the weights go through {after.name}"] if after is not None else []
        if idle:
            notes.append(f"the model has no tables: {self.blocks.servers} servers have nothing to hold")
        return "; ".join(notes)

    def begin(self, version: int, carry: bool = True) -> None:
        """As the port has it; `carry`: with the state that the user's optimizer brings."""
        blocks = self.blocks
        if blocks.folds:
            self._warm_up()
            self._folder = self._built()
            self._absent = [b""] * blocks.seats
            if carry and blocks.carried is not None:
                self._folder.begin_from(blocks.carried, blocks.ring[1:])
        for buffer in (*blocks.versions.buffers[1:], *blocks.ring[MEANS : MEANS + blocks.gives_back_mean]):
            buffer.copy_from(blocks.ring[0])
        if self.own is not None:
            self.own.go_back(version)
        if self.rows is not None and blocks.brought:
            self.rows.begin_with(blocks.brought)
            blocks.brought = {}  # a copy of them all
        if advice := self._advice():
            warnings.warn(advice, RuntimeWarning, stacklevel=2)

    def _warm_up(self) -> None:
        """Load the kernels that only other phases use: it takes half a second."""
        blocks, now = self.blocks, self.blocks.phase
        for phase in [phase for phase in range(len(blocks.phases)) if phase != now]:
            blocks.turn_to(phase)
            self._built()
            blocks.turn_to(now)

    def _built(self) -> Folder:
        blocks, strategy = self.blocks, self.blocks.strategy
        after = blocks.after_step if strategy.steps_at_server else None
        applied = Applied(after, blocks.model.specs) if after is not None else None
        return build_folder(
            strategy, blocks.specs, blocks.versions, blocks.slots, blocks.workers, blocks.new_arenas(), blocks.packed,
            self._threads(), applied, self._put_together(),
        )  # fmt: skip

    def _put_together(self) -> Callable[[Parts], Folder]:
        if self._log is None or self.why_not_durable:
            return Folder
        specs, layout = self.blocks.specs, self.blocks.state_layout
        return partial(Surviving, self._log, kept_keys(specs, layout, small=True) if specs else ())

    def _threads(self) -> int:
        """Those that share a fold: the cores that workers leave idle meanwhile, all of them in a round."""
        cores = len(os.sched_getaffinity(0))
        return cores if self.blocks.strategy.gather.in_rounds else max(1, cores - self.blocks.workers)

    def _advice(self) -> str:
        """What the user should know of the way this run folds; empty if it is as the strategy says."""
        strategy = self.blocks.strategy
        asked = strategy.adopt.looks_ahead and self.blocks.workers > 1  # one has nobody to look ahead to
        kept = [spec for spec in self.blocks.specs if keeps_momentum(spec.groups)]
        if not asked or not kept or self.folder.looks_ahead:
            return ""
        return (
            f"{kept[0].kind.__name__}: no look-ahead is known for it, so {strategy.name} folds it plainly, which "
            "can diverge with many workers; use SGD, Adam or AdamW, or correct='plain' to accept it"
        )

    # Training

    def joins(self, worker: int) -> None:
        self._parts[worker] = ALL_PARTS
        if self.own is not None:
            self.own.hand_on(worker)
        if self.rows is not None:
            self.rows.forget(worker)

    def told(self, worker: int, made: Contribution) -> None:
        if made.settings:
            self.folder.set_groups(worker, msgspec.msgpack.decode(made.settings))
            if self.own is not None:
                self.own.told(worker, made.settings)
        if self._one_by_one:
            self._number[worker], self._finite[worker] = made.number, made.finite
            part = self._parts[worker] = made.beside.part
            self.part_bytes += self.push_bytes[part]
            if self._sums is not None:
                self._sums.came(worker, made)
        if made.rows or made.absent != self._absent[worker]:
            self._absent[worker] = made.absent
            self.folder.came(worker, of_bits(made.absent), made.rows)

    def do(self, effect: Any) -> None:
        folder = self._folder
        if folder is None:  # the workers fold
            return
        if self.rows is not None:  # they step before the version of their contribution is made
            self.rows.do(effect)
        kind: type = type(effect)
        if kind is Show:
            self._places[effect.worker] = folder.publish(effect.worker, effect.unasked, self._parts[effect.worker])
        elif kind is Fold:
            if self.own is not None:
                self.own.check(effect)
            if self._sums is None:
                folder.fold(effect)
            elif (fold := self._sums.fold(effect)) is not None:
                folder.fold(fold)
        elif kind is Hold:
            folder.hold(effect.worker, effect.weight)
        elif kind is Forget:
            folder.forget(effect.worker)
            self._number[effect.worker] = 0
            if self._sums is not None:
                self._sums.forget(effect.worker)
        elif kind is Share:
            folder.share_among(effect.workers)
            self._among = effect.workers
        elif kind is Switch:
            try:
                self._switch(effect.phase)
            except SharedMemoryError as error:
                if self._log is not None and self._log.recovering:  # it was done: nobody may go on as if it were not
                    raise MemoryError("a switch cannot be done again") from error
                raise

    def _switch(self, phase: int) -> None:
        """As a checkpoint would be gone on from in that phase, without one. Nobody reads a version until it is shown one.

        Nothing that is read here is written: a process that takes over does it again."""
        blocks, was, before = self.blocks, self.blocks.strategy, self.folder.kept()
        waiting = [worker for worker, number in enumerate(self._number) if number]
        there = [worker for worker in waiting if worker not in self.elsewhere]
        at = self._in_workers
        held = ((worker, at.left(worker, self._number[worker])) for worker in there) if at is not None else ()
        left = ((worker, state) for worker, state in held if state)
        sound = (
            (worker, state) for worker, state in left if self._finite[worker]
        )  # else its optimizer may have overflowed
        own = dict(islice(sound, 1) if blocks.phases[phase].steps_at_server else left)  # of several the lowest counts
        blocks.versions.turn()
        self.laid_out += 1
        blocks.turn_to(phase)
        self._count_bytes()
        self._folder = self._built()
        begun = take_over(blocks, self._folder, was, Kept({}, before.tensors, before.numbers, (), own=own, was=was))
        self._folder.all_behind()
        self._folder.share_among(self._among)
        if blocks.held is not None:
            self._once(partial(self._give, blocks.held, waiting, begun))
        dropped = [*lost(was, blocks.strategy, before.numbers, blocks.workers)]
        if was.send.stepped and not blocks.strategy.send.stepped:
            away = "they are all on other hosts" if self.elsewhere >= set(waiting) else "none can be had that is sound"
            why = away if waiting else "none of them is left"
            dropped.append(one_for_all(waiting, min(own, default=None), why))
        self.dropped = "; ".join(filter(None, dropped))

    def _give(self, held: Held, waiting: Sequence[int], begun: Mapping[int, bytes]) -> None:
        """Have those who wait go on with what they begin with, or with nothing."""
        for worker in range(self.blocks.seats):
            if worker in waiting:
                held.give(worker, self._number[worker], begun.get(worker, b""))
            else:
                held.forget(worker)

    def located(self, worker: int, answer: Answer) -> Located:
        if self.own is not None and isinstance(answer, Beginning):
            return Located(answer, MEANS)  # behind which the parameters lie
        if self._one_by_one and isinstance(answer, GoOn):
            answer.part = self._parts[worker] if self._sums is None else self._sums.part(worker)
            self.part_bytes += self.answer_bytes[answer.part]
        return Located(answer, self._places[worker])

    def whole(self, answer: Answer) -> Located:
        """An answer to anybody, with the place of the current version itself."""
        return Located(answer, next(at for at, one in enumerate(self.blocks.ring) if one is self.current))

    # What others may see

    def checksum(self, version: int) -> int:
        window: int = self._once(lambda: window_checksum(self.folded.bytes, version))
        return (window + self.rows.take_checksum()) % HASH if self.rows is not None else window

    def digest(self) -> str:
        weights: str = self._once(lambda: weights_hash(self.current.memory))
        return f"{weights} {self.rows.checksum():016x}" if self.rows is not None else weights

    def not_finite(self) -> str:
        name: str = self._once(self._not_finite)
        return name

    def _not_finite(self) -> str:
        parameters = self.current if self._final is None else self.blocks.ring[self._final]
        if are_finite(parameters.of_kind(Kind.TRAINED, Kind.ROWS)):
            return ""
        named = zip(parameters.layout.specs, parameters.views, strict=True)
        return next(spec.name for spec, view in named if spec.kind.moves and not are_finite([view]))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The parameters by the model's names, each with memory of its own."""
        views = self.current.views
        named = {name: views[index].clone() for name, index in self.blocks.model.names}
        return named | {name: table.clone() for name, table in self.blocks.tables.items()}

    def view(self, reader: int, final: bool = False) -> Lies:
        """Where `reader` finds the parameters as they are, until it asks again. Where workers fold by themselves that is where
        they write."""
        blocks = self.blocks
        buffer = self._shown_whole(reader) if blocks.folds else 0
        self._final = buffer if final else None
        return blocks.lies(buffer)

    def _shown_whole(self, reader: int) -> int:
        if self.own is None:
            return self.folder.snapshot(reader)
        if reader != EVALUATOR:
            return MEANS
        self._once(partial(self.blocks.ring[-1].copy_from, self.current))  # it reads while others are looked at
        return len(self.blocks.ring) - 1

    def state_for(self, worker: int) -> tuple[Carried, SharedBlock]:
        """The state of the optimizer that steps at the server, as `worker` would hold it; the block holds what the keys name."""
        carried = self.folder.carried()
        block, arenas = self.blocks.lent(len(carried.keys), "the optimizer's state")
        self.folder.copy_state(worker, carried, arenas)
        return carried, block

    # Checkpoints

    def kept(self) -> Kept:
        kept = saved.kept(self.blocks, self.current, self.folder.kept())
        return kept if self.rows is None else kept._replace(numbers=kept.numbers | {"clock": self.rows.clock})

    def restore(self, kept: Kept, name: str, version: int) -> Mapping[int, bytes]:
        numbers = dict(kept.numbers)
        clock = numbers.pop("clock", 0)
        if kept.phase:
            self.blocks.turn_to(kept.phase)
            self._count_bytes()
        saved.load_weights(self.blocks, kept, name)
        self.begin(version, carry=False)
        own = kept.own
        if kept.was is not None:
            own = take_over(self.blocks, self.folder, kept.was, kept)
        else:
            saved.load_state(self.folder, kept._replace(numbers=numbers), name)
        if self.rows is not None:
            self.rows.restore(*kept.tables, clock)
        return own

    def begin_anew(self) -> None:
        self.folder.begin_anew()
        if self._sums is not None:
            self._sums.begin()
        if self.rows is not None:
            self.rows.begin_anew()

    @property
    def holds(self) -> bool:
        return self.blocks.held is not None

    def held(self, worker: int, number: int) -> bytes | None:
        at = self._in_workers
        return at.get_all(worker, number) if at is not None else None

    @property
    def _in_workers(self) -> Held | None:
        """Where they leave what they hold, if they hold anything in this phase."""
        blocks = self.blocks
        holds = len(blocks.phases) == 1 or blocks.strategy.send.stepped or blocks.seats == 1
        return blocks.held if holds else None

    def lacks(self, numbers: Mapping[int, int]) -> list[int]:
        held, blocks = self.blocks.held, self.blocks
        if held is None or self._in_one_process or not blocks.strategy.send.stepped or len(blocks.phases) > 1:
            return []
        lacking: list[int] = self._once(lambda: [one for one, number in numbers.items() if not held.has(one, number)])
        held.asked = bool(lacking)
        return lacking

    def hold_again(self, worker: int, state: bytes | None) -> bool:
        if self.blocks.held is None:
            return False
        held_again: bool = self._once(partial(self._hold_again, self.blocks.held, worker, state))
        return held_again

    @staticmethod
    def _hold_again(held: Held, worker: int, state: bytes | None) -> bool:
        held.forget(worker)
        return state is not None and held.put_all(worker, 0, state)

    @property
    def why_not_durable(self) -> str:
        """Why nobody could go on from what this process leaves; empty if somebody could."""
        if any(spec.kind is Kind.ROWS for spec in self.blocks.layout.specs):
            return "which rows of embeddings with sparse=True changed is in its own memory"
        if self.rows is not None and not self.blocks.rows_survive:  # or nobody asked, and nobody is told
            return f"under {self.blocks.rows_wait} gradients of rows wait for their fold in its own memory"
        return self._folder.lost if self._folder is not None else ""


def _masked_sums(blocks: Blocks) -> MaskedSums | None:
    send = blocks.strategy.send
    if send.secure is None:
        return None
    from plesio.memory.masked_sums import MaskedSums  # the cryptography takes a while to import

    return MaskedSums(send.secure, send.privacy, blocks.slots)
