"""A run's shared memory, laid out when every worker has shown its model.

What it takes, for N workers and W bytes of weights, is a formula that a run prints:

| block | bytes |
| --- | --- |
| ring of versions | (N + 2) W, one more with an evaluator, N - m more under `first_of`; 1 W where everybody folds in place |
| packed answers | as much as the ring, of which the packed bytes alone are touched |
| mirrors | where everybody folds in itself: 2 W for the final weights, one more with an evaluator |
| slots | N W |
| under `allreduce` | ring: 2 W for means, 1 W for parameters, one more with an evaluator; N W more where workers step |
| what workers hold | where they train alone, with checkpoints: twice what their optimizers keep, and error memories |
| state at the server | what the optimizer keeps (momentum 1 W, Adam 2 W); DANA: N + 1 momenta; a buffer: 1 W, DANA: k W |
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import partial

from rich.filesize import decimal
from xxhash import xxh3_64_intdigest

from plesio.errors import ConfigurationError
from plesio.protocol.worker import Hello, Welcome
from plesio.server.last_weights import LastWeights
from plesio.strategy import Strategy
from plesio.strategy.answers import Codec
from plesio.tensors.after_step import Applied, same
from plesio.tensors.arena import PAGE, Arena, Kind, Layout
from plesio.tensors.carrying import Carried
from plesio.tensors.folding import Folder, build_folder, state_copies
from plesio.tensors.look_ahead import LookAheadFolding, keeps_momentum
from plesio.tensors.model import Described, check_same
from plesio.tensors.optimizer_spec import OptimizerSpec, check_same_optimizers
from plesio.tensors.outer_optimizer import described
from plesio.tensors.packing import Packing
from plesio.tensors.versions import Versions
from plesio.transport.board import Board
from plesio.transport.held import Held
from plesio.transport.memory import CopyOnWriteView, SharedBlock, check_room, tables_at

MEANS = 2
"""Buffers of the ring for means, where these are what is folded: the parameters lie behind them."""
EVALUATOR = -1
"""The reader of the ring that is no worker."""


class Assembly:
    """The memory of one run and what the server does with it. `holds`: workers leave what they hold of their own."""

    def __init__(
        self,
        strategy: Strategy,
        workers: int,
        hellos: Sequence[Hello],
        evaluates: bool,
        seats: int = 0,
        holds: bool = False,
    ) -> None:
        self._strategy = strategy
        self._workers = workers
        seats = max(workers, seats)
        self._first = hellos[0]
        self.model: Described = self._first.model
        self.structure = next((one.structure for one in hellos if one.structure), b"")
        if evaluates and not self.structure:
            raise ConfigurationError(
                "evaluate is called with the model, which only a worker on the head's own host can hand over, and there is none: "
                "start one there, or leave evaluate out and measure in the training function"
            )
        self.layout = Layout(self.model.specs)
        self.after_step = same([one.after_step for one in hellos])
        self.tables = tables_at(self.model.tables)
        self._check_privacy()
        self.folds = strategy.via.at_server
        self.mirrored = strategy.via.by_collective
        self.gives_back_mean = strategy.gives_back_mean
        self._specs = _specs_of(strategy, self._first, workers)
        for hello in hellos[1:]:
            self.check(hello)
        self._carried = self._specs[0].carried if strategy.steps_at_server else None
        carried = len(self._carried.keys) if self._carried is not None else 0
        read = most_read(strategy, seats) + evaluates
        own = 2 + evaluates if self.mirrored else 1
        buffers = max(read + 2, 1 + carried) if self.folds else own
        blocks = 2 * buffers if strategy.adopt.codec is not None else buffers
        slots = seats if self.folds else 0
        if self.gives_back_mean:  # nobody reads a mean any more when the next one is made
            buffers, blocks, slots = 2, 3 + evaluates, 2 * seats
        kept = state_copies(strategy, self._specs, self.layout, seats) if self.folds else 0
        what = (
            f"training this model ({decimal(self.layout.nbytes)}) with {seats} workers under {strategy.name}: "
            f"{buffers} versions, {slots} slots, {kept} of state;"
        )
        check_room(self.layout.nbytes * (blocks + slots + kept), what)
        self._state: list[SharedBlock] = []
        self._ring = SharedBlock.create(self.layout.nbytes * blocks, what)
        self._slots = SharedBlock.create(self.layout.nbytes * slots or PAGE, what)
        self.board = Board(SharedBlock.create(PAGE, what), seats)
        self.ring = arenas(self._ring, self.layout, blocks)
        self.slots = arenas(self._slots, self.layout, slots)
        self.homes = self.slots[seats:]
        """Where workers have their parameters, if these are theirs."""
        self.in_one_process = False
        """Whether workers run from one request to the next, in this process."""
        self.seen = -1, 0
        """Of which version the parameters are that were seen last, and minus whose."""
        self._ended = -1, 0  # of which version a worker's were that ended, and their digest
        own = (holds and (strategy.send.stepped or seats == 1)) or self.gives_back_mean
        self.held = Held.create(seats) if own else None
        self.last_weights = LastWeights(tuple(range(buffers)[-2:]))
        self._versions = Versions(self.ring[:buffers])
        self._folder: Folder | None = None

    def _check_privacy(self) -> None:
        names = [*(spec.name for spec in self.model.specs if spec.kind is Kind.BUFFER), *self.tables]
        if self._strategy.send.privacy is not None and names:
            raise ConfigurationError(
                f"privacy=: the model's buffers ({', '.join(names[:3])}) would be sent as they are, neither clipped nor noised; "
                "use layers without running statistics (GroupNorm in place of BatchNorm)"
            )

    @property
    def push_bytes(self) -> int:
        """What a contribution takes, without the rows of tables."""
        return self._bytes_by(self._strategy.send.codec)

    @property
    def answer_bytes(self) -> int:
        """What an answer takes."""
        return self._bytes_by(self._strategy.adopt.codec)

    def _bytes_by(self, codec: Codec | None) -> int:
        return Packing(self.layout, codec).nbytes if codec is not None else self.layout.payload_bytes

    def check(self, hello: Hello) -> None:
        """Make sure that a worker goes with the first one: where optimizers step for all, these have to be the same, too."""
        if self.after_step is not None or hello.after_step is not None:
            same([self.after_step, hello.after_step])
        check_same(self.layout, Layout(hello.model.specs), hello.worker, self._first.worker)
        if self._strategy.outer.of_user or self._strategy.outer.in_worker:
            check_same_optimizers(self._first.optimizers, hello.optimizers, hello.worker, self._first.worker)

    @property
    def folder(self) -> Folder:
        assert self._folder is not None, "training has begun"
        return self._folder

    @property
    def current(self) -> Arena:
        """The global parameters as the last fold left them; the next one writes there. Where they are the workers', as they were
        seen last."""
        return self.ring[MEANS] if self.gives_back_mean else self.folded

    @property
    def folded(self) -> Arena:
        """What the last fold made."""
        return self._versions.buffers[self._versions.current]

    def look_at(self, worker: int, version: int) -> None:
        """The parameters of `version` are those that `worker` has, or one with a lower number."""
        if (version, -worker) >= self.seen:
            self.seen = version, -worker
            self.current.copy_from(self.homes[worker])

    def ended_alike(self, worker: int, version: int) -> bool:
        """`worker` has ended with `version`; whether the one before it, if that ended with the same, has the same parameters."""
        self.look_at(worker, version)
        before, self._ended = self._ended, (version, _digest(self.homes[worker]))
        return before[0] != version or before == self._ended

    @property
    def ring_descriptor(self) -> int:
        return self._ring.fd

    @property
    def shared_bytes(self) -> int:
        return self._ring.nbytes + self._slots.nbytes + sum(block.nbytes for block in self._state) + PAGE

    def welcome(self, first: bool) -> tuple[Welcome, tuple[int, ...]]:
        """What to tell a worker, with descriptors; the `first` hands over the initial weights."""
        held = (self.held.fd,) if self.held is not None else ()
        return Welcome(len(self.ring), first), (self._ring.fd, self._slots.fd, self.board.descriptor, *held)

    def close(self) -> None:
        """Release the memory: the worker that should initialise it died."""
        self._ring.close()
        self._slots.close()

    def build_folder(self, carry: bool = True) -> None:
        """Get ready to fold from the weights in the first buffer, and if `carry` with the state in those behind it."""
        if self.folds:
            # not a method of ours: in a cycle, memory would wait for the collector
            new_arena = partial(_new_arena, self._state, self.layout, self._strategy.name)
            self._folder = build_folder(
                self._strategy,
                self._specs,
                self._versions,
                self.slots,
                self._workers,
                new_arena,
                self.ring[len(self._versions.buffers) :],
                self._threads(),
                Applied(self.after_step, self.model.specs)
                if self.after_step and self._strategy.steps_at_server
                else None,
            )
            if carry and self._carried is not None:
                self._folder.begin_from(self._carried, self.ring[1:])
        for buffer in (*self._versions.buffers[1:], *self.ring[MEANS : MEANS + self.gives_back_mean]):
            buffer.copy_from(self.ring[0])
        if self.advice:
            warnings.warn(self.advice, RuntimeWarning, stacklevel=2)

    def _threads(self) -> int:
        """Those that share a fold: the cores that workers leave idle meanwhile, all of them in a round."""
        cores = len(os.sched_getaffinity(0))
        return cores if self._strategy.gather.in_rounds else max(1, cores - self._workers)

    @property
    def advice(self) -> str:
        """What the user should know of the way this run folds; empty if it is as the strategy says."""
        asked = self._strategy.adopt.looks_ahead and self._workers > 1  # one has nobody to look ahead to
        if not asked or isinstance(self._folder, LookAheadFolding):
            return ""
        kept = [spec for spec in self._specs if keeps_momentum(spec.groups)]
        if not kept:
            return ""
        return (
            f"{kept[0].kind.__name__}: no look-ahead is known for it, so {self._strategy.name} folds it plainly, which "
            "can diverge with many workers; use SGD, Adam or AdamW, or correct='plain' to accept it"
        )

    def state_for(self, worker: int) -> tuple[Carried, SharedBlock]:
        """The state of the optimizer that steps at the server, as `worker` would hold it; the block holds what the keys name."""
        carried = self.folder.carried()
        block = SharedBlock.create(self.layout.nbytes * len(carried.keys) or PAGE, "the optimizer's state")
        self.folder.copy_state(worker, carried, arenas(block, self.layout, len(carried.keys)))
        return carried, block

    def final_buffer(self, reader: int) -> int:
        """Pin a buffer that holds the parameters as they are (or, mirrored, as the last to finish left them)."""
        if self.gives_back_mean:
            if reader != EVALUATOR:
                return MEANS
            self.ring[-1].copy_from(self.current)  # it reads while others are looked at
            return len(self.ring) - 1
        if self.folds:
            return self.folder.snapshot(reader)
        whole = self.last_weights.whole
        return whole.buffer if whole is not None else len(self.ring) - 1


def _specs_of(strategy: Strategy, first: Hello, workers: int) -> tuple[OptimizerSpec, ...]:
    """What steps at the server: the user's optimizers, the strategy's outer one, or none."""
    if strategy.steps_at_server:
        return first.optimizers
    if not strategy.outer.own_optimizer:
        return ()
    return (described(strategy.outer, 1 + max(spec.group for spec in first.model.specs), workers),)


def _new_arena(state: list[SharedBlock], layout: Layout, keeper: str, what: str) -> Arena:
    block = SharedBlock.create(layout.nbytes, f"the {what} that {keeper} keeps")
    state.append(block)
    return Arena(layout, block.memory)


def _digest(arena: Arena) -> int:
    """Of the parameters."""
    ((_, end),) = arena.layout.stretches((Kind.TRAINED, Kind.FROZEN))
    return xxh3_64_intdigest(arena.memory[:end].numpy().data)


def most_read(strategy: Strategy, workers: int) -> int:
    """How many versions workers read at once, at most: one each; two, who was called off and does not know yet."""
    late = workers - strategy.gather.size(workers) if strategy.release.cancel_late else 0
    return workers + late


def arenas(block: SharedBlock | CopyOnWriteView, layout: Layout, count: int) -> tuple[Arena, ...]:
    return tuple(
        Arena(layout, block.memory[index * layout.nbytes : (index + 1) * layout.nbytes]) for index in range(count)
    )
