"""A run's shared memory in blocks, laid out when every worker has shown its model.

What it takes, for N workers and W bytes of weights, is a formula that a run prints:

| block | bytes |
| --- | --- |
| ring of versions | (N + 2) W, one more each for an evaluator and readers, N - m under `first_of`; 1 W where all fold in place |
| packed answers | as much as the ring, of which the packed bytes alone are touched |
| slots | N W |
| under `allreduce` | ring: 2 W for means, 1 W for parameters, one more each for evaluator and readers; N W where workers step |
| what workers hold | where they train alone, with checkpoints: twice what their optimizers keep, error memories; fragments: 2 W |
| rows of tables | on their way: what was written of (N + 1) sparse places, two each; at home: `plesio.tables` |
| state at the server | what the optimizer keeps (momentum 1 W, Adam 2 W); DANA: N + 1 momenta; a buffer: 1 W, DANA: k W |
| packed contributions | at the server 1 W for what is unpacked |
| master copy | of half precision: 2 W; a mean contribution 2 W; corrections, privacy, robust folds: 2 W; each W of state: 2 W |
| where the server survives | all that it keeps twice, and 1 W; under look-ahead 1 W more in the ring |

With `phases` each block is the largest that one of them needs. State at the server is that of two: at a switch one begins from
the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.filesize import decimal

from plesio.capabilities import halves
from plesio.errors import ConfigurationError
from plesio.memory.folder import state_copies
from plesio.memory.gather import held_by
from plesio.memory.master import state_layout
from plesio.memory.publish import Versions
from plesio.protocol.worker import Hello, Welcome
from plesio.strategy import Strategy
from plesio.system.memory import CopyOnWriteView, SharedBlock, check_room, tables_at
from plesio.tables.file import KeptRows
from plesio.tensors.after_step import same
from plesio.tensors.arena import PAGE, Arena, Kind, Layout, Lies
from plesio.tensors.cut import cut
from plesio.tensors.model import Described, check_same
from plesio.tensors.optimizer_spec import OptimizerSpec, check_same_optimizers
from plesio.tensors.outer_optimizer import described
from plesio.transport import row_slots
from plesio.transport.board import Board
from plesio.transport.held import Held
from plesio.transport.row_slots import RowSlots

MEANS = 2
"""Buffers of the ring for means, where these are what is folded: the parameters lie behind them."""


class Blocks:
    """The shared memory of one run, for the models that workers show. `holds`: workers leave what they hold of their own;
    `ranks`: of how many processes each is; `survives`: a process that takes over goes on with it, with the rows of tables if
    `rows_survive`; `reads`: a process serves readers.

    Raises:
        ConfigurationError: the models, optimizers or settings do not go together.
        SharedMemoryError: there is not that much memory.
    """

    def __init__(
        self,
        strategy: Strategy,
        workers: int,
        hellos: Sequence[Hello],
        evaluates: bool,
        seats: int = 0,
        holds: bool = False,
        servers: int = 1,
        ranks: int = 1,
        survives: bool = False,
        rows_survive: bool = False,
        reads: bool = False,
    ) -> None:
        self.reads = reads
        self.phases = phases = strategy.phases
        self.workers = workers
        self.seats = seats = max(workers, seats)
        self.first = hellos[0]
        self.model: Described = self.first.model
        self.structure = next((one.structure for one in hellos if one.structure), b"")
        if evaluates and not self.structure:
            raise ConfigurationError(
                "evaluate is called with the model, which only a worker on the head's own host can hand over, and there is none: "
                "start one there, or leave evaluate out and measure in the training function"
            )
        self.layout = Layout(cut(self.model.specs, strategy.send.fragments))
        self.after_step = same([one.after_step for one in hellos])
        self.tables = tables_at(self.model.tables)
        self.folds = strategy.via.at_server
        self.state_layout = state_layout(strategy, self.layout)
        """Of what the server keeps."""
        self.gives_back_mean = strategy.gives_back_mean
        self._specs = [_specs_of(one, self.first, workers) for one in phases]
        self.turn_to(0)
        self._check_privacy()
        self._check_rows()
        for half in halves(self.strategy, "memory"):
            half.check(self)
        self._check_turns()
        for hello in hellos[1:]:
            self.check(hello)
        self.carried = self.specs[0].carried if strategy.steps_at_server else None
        """The state that the user's optimizer brings."""
        carried = len(self.carried.keys) if self.carried is not None else 0
        read = max(most_read(one, seats) for one in phases) + evaluates + reads
        # the version before, the next one, and what is shown of it
        beside = survives and any(one.adopt.looks_ahead for one in phases)
        buffers = max(read + 2 + beside, 1 + carried) if self.folds else 1
        blocks = 2 * buffers if any(one.adopt.codec is not None for one in phases) else buffers
        slots = seats if self.folds else 0
        if self.gives_back_mean:  # nobody reads a mean any more when the next one is made
            buffers, blocks, slots = 2, 3 + evaluates + reads, 2 * seats
        copies = [state_copies(one, own, self.layout, seats) for one, own in zip(phases, self._specs, strict=True)]
        kept = sum(sorted(copies)[-2:]) if self.folds else 0
        kept = 2 * kept + min(2, len(phases)) if survives else kept
        what = (
            f"training this model ({decimal(self.layout.nbytes)}) with {seats} workers under {strategy.name}: "
            f"{buffers} versions, {slots} slots, {kept} of state;"
        )
        check_room(self.layout.nbytes * (blocks + slots) + self.state_layout.nbytes * kept, what)
        self._ring = SharedBlock.create(self.layout.nbytes * blocks, what)
        self._slots = SharedBlock.create(self.layout.nbytes * slots or PAGE, what)
        self.board = Board(SharedBlock.create(PAGE, what), seats)
        self.servers = servers
        self.rows = tuple(RowSlots.create(self.first.tables, seats + 1) for _ in range(servers) if self.first.tables)
        """Where rows of tables are asked for, of each server, by workers and, behind them, the evaluator."""
        self.rows_wait = next((one.name for one in phases if held_by(one) and not one.rows.at_once), "")
        """Under which strategy gradients of rows wait for a fold, if there is one."""
        self.rows_survive = rows_survive and not self.rows_wait
        self.bells: tuple[int, ...] = ()
        """What several servers of these ring, by reader."""
        self.brought: Mapping[str, KeptRows] = {}
        """The rows of the first worker's tables, which training begins with."""
        self.ring = arenas(self._ring, self.layout, blocks)
        self.slots = arenas(self._slots, self.layout, slots)
        self.versions = Versions(self.ring[:buffers], strategy.computes_ahead)
        self.packed = self.ring[buffers:]
        """Where packed answers go."""
        self.homes = self.slots[seats:]
        """Where workers have their parameters, if these are theirs."""
        keep = any(one.keeps_own for one in phases)
        own = (holds and (keep or seats == 1)) or (keep and len(phases) > 1) or self.gives_back_mean
        self.held = Held.create(seats, ranks) if own else None

    @property
    def note(self) -> str:
        """What the record of the run should say of it."""
        after, idle = self.after_step, self.servers > 1 and not self.rows
        notes = [f"after each step the weights go through {after.name}"] if after is not None else []
        if idle:
            notes.append(f"the model has no tables: {self.servers} servers have nothing to hold")
        return "; ".join(notes)

    def _check_turns(self) -> None:
        """A round of gradients is of one optimizer, and from some phases workers come with steps of different ones."""
        together = [_in_step(one, self.workers) for one in self.phases]
        rounds = [alike and not one.send.stepped for one, alike in zip(self.phases, together, strict=True)]
        if len(self.first.optimizers) > 1 and any(rounds) and not all(together):
            raise ConfigurationError(
                f"{len(self.first.optimizers)} optimizers, and of the phases {self.phases[rounds.index(True)].name} takes the "
                f"mean of one's steps, while under {self.phases[together.index(False)].name} workers are at different ones; take "
                "phases in which all workers step as often"
            )

    def _check_privacy(self) -> None:
        names = [*(spec.name for spec in self.model.specs if spec.kind is Kind.BUFFER), *self.tables]
        if self.strategy.send.privacy is not None and names:
            raise ConfigurationError(
                f"privacy=: the model's buffers ({', '.join(names[:3])}) would be sent as they are, neither clipped nor noised; "
                "use layers without running statistics (GroupNorm in place of BatchNorm)"
            )

    def _check_rows(self) -> None:
        rows = [spec.name for spec in self.model.specs if spec.kind is Kind.ROWS]
        packing = [one.name for one in self.phases if one.send.codec is not None]
        if rows and packing:
            raise ConfigurationError(
                f"{packing[0]}: {', '.join(rows[:3])} is of an embedding with sparse=True, whose rows travel alone, and a "
                "codec packs whole tensors: take ps.Table, whose rows travel beside what is packed, sparse=False, or no codec"
            )

    def check(self, hello: Hello) -> None:
        """Make sure that a worker goes with the first one: where optimizers step for all, these have to be the same, too."""
        if self.after_step is not None or hello.after_step is not None:
            same([self.after_step, hello.after_step])
        check_same(self.layout, Layout(hello.model.specs), hello.worker, self.first.worker)
        row_slots.check_same(self.first.tables, hello.tables, hello.worker, self.first.worker)
        if any(one.outer.of_user or one.outer.in_worker for one in self.phases):
            check_same_optimizers(self.first.optimizers, hello.optimizers, hello.worker, self.first.worker)

    @property
    def ring_descriptor(self) -> int:
        return self._ring.fd

    @property
    def shared_bytes(self) -> int:
        return self._ring.nbytes + self._slots.nbytes + sum(block.nbytes for block in self._state) + PAGE

    def welcome(self, worker: int, first: bool) -> tuple[Welcome, tuple[int, ...]]:
        """What to tell a worker, with descriptors; the `first` hands over the initial weights."""
        more = [one.fd for one in (self.held, *self.rows) if one is not None]
        fds = self._ring.fd, self._slots.fd, self.board.descriptor, *more, *self.bell_of(worker)
        return Welcome(len(self.ring), first, len(self.rows)), fds

    def bell_of(self, reader: int) -> tuple[int, ...]:
        """Its descriptor, if several servers hold rows of tables."""
        return self.bells[reader : reader + 1] if self.rows else ()

    def lies(self, buffer: int) -> Lies:
        """Where a buffer of the ring lies."""
        return Lies(self._ring.nbytes, buffer * self.layout.nbytes)

    def new_arenas(self) -> Callable[[str], Arena]:
        """Makes memory for what the server keeps."""
        # not a method of ours: in a cycle, memory would wait for the collector
        return partial(_new_arena, self._state, self.state_layout, self.strategy.name)

    def lent(self, count: int, what: str, layout: Layout | None = None) -> tuple[SharedBlock, tuple[Arena, ...]]:
        """Memory for so many arenas of `what`, for a worker; or in another `layout`."""
        layout = layout or self.layout
        block = SharedBlock.create(layout.nbytes * count or PAGE, what)
        return block, arenas(block, layout, count)

    def turn_to(self, phase: int) -> None:
        """The run is in this phase. What the server kept in another one goes with whoever kept it."""
        self.phase, self.strategy, self.specs = phase, self.phases[phase], self._specs[phase]
        self._state: list[SharedBlock] = []

    def warm_up(self, build: Callable[[], object]) -> None:
        """Load the kernels that only other phases use: it takes half a second."""
        now = self.phase
        for phase in [phase for phase in range(len(self.phases)) if phase != now]:
            self.turn_to(phase)
            build()
            self.turn_to(now)

    def close(self) -> None:
        """Release the memory: the worker that should initialise it died."""
        for block in (self._ring, self._slots):
            block.close()
        for slots in self.rows:
            slots.close()


def _specs_of(strategy: Strategy, first: Hello, workers: int) -> tuple[OptimizerSpec, ...]:
    """What steps at the server: the user's optimizers, the strategy's outer one, or none."""
    if strategy.steps_at_server:
        return first.optimizers
    if not strategy.outer.own_optimizer:
        return ()
    return (described(strategy.outer, 1 + max(spec.group for spec in first.model.specs), workers),)


def _in_step(strategy: Strategy, workers: int) -> bool:
    """Whether all workers have taken as many steps whenever all wait."""
    every, gather = strategy.every, strategy.gather
    return workers == 1 or (gather.in_rounds and gather.size(workers) >= workers and not (every.timed or every.paced))


def _new_arena(state: list[SharedBlock], layout: Layout, keeper: str, what: str) -> Arena:
    block = SharedBlock.create(layout.nbytes, f"the {what} that {keeper} keeps")
    state.append(block)
    return Arena(layout, block.memory)


def most_read(strategy: Strategy, workers: int) -> int:
    """How many versions workers read at once, at most: one each; two, where it computes ahead, or was called off."""
    if strategy.computes_ahead:
        return 2 * workers
    late = workers - strategy.gather.size(workers) if strategy.release.cancel_late else 0
    return workers + late


def arenas(block: SharedBlock | CopyOnWriteView, layout: Layout, count: int) -> tuple[Arena, ...]:
    return tuple(
        Arena(layout, block.memory[index * layout.nbytes : (index + 1) * layout.nbytes]) for index in range(count)
    )
