"""The run's memory when everybody is in one process: laid out when the first worker shows its model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakSet

import torch
from torch import nn

from plesio.errors import ConfigurationError
from plesio.launch.one_process.greenlets import GreenletWorker, wait
from plesio.memory.blocks import Blocks
from plesio.memory.machine import Machine
from plesio.protocol.worker import Hello
from plesio.server.program import Program
from plesio.strategy import Strategy
from plesio.system.memory import check_room
from plesio.tables.module import Table, named_tables
from plesio.tensors.arena import Arena
from plesio.tensors.model import load_structure
from plesio.transport.ring import Ring
from plesio.worker.exchanges.place import Home, Place, RowsPlace
from plesio.worker.randomness.seeding import RandomState
from plesio.worker.row_exchange import RowExchange, check_strategy


@contextmanager
def apart(threads: int) -> Iterator[None]:
    """As in processes of its own: torch computes on so many threads, and in the end all is as before."""
    before, random = torch.get_num_threads(), RandomState()
    torch.set_num_threads(threads)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(before)
        random.restore()


class Seating:
    """Brings workers of this process to where training can begin; the first one's model lays out the memory for `program`.
    `holds`: they leave what they hold of their own there; `servers`: hold the rows of tables."""

    def __init__(self, strategy: Strategy, program: Program, holds: bool, servers: int = 1) -> None:
        self._holds, self._servers = holds, servers
        self._strategy = strategy
        self._program = program
        self._workers, self._seats = program.sequencer.workers, len(program.listening)
        self._first: Hello | None = None
        self._machine: Machine | None = None
        self._judged: tuple[Arena, nn.Module, RowExchange | None] | None = None
        self._held: dict[int, WeakSet[nn.Module]] = {}  # by worker

    @property
    def memory(self) -> Machine:
        assert self._machine is not None, "a worker was seated"
        return self._machine

    @property
    def state_dict(self) -> dict[str, torch.Tensor]:
        self._program.look()
        return self.memory.state_dict()

    def handed_over(self) -> tuple[dict[str, torch.Tensor], dict[str, Table]]:
        """The model as it was left, and its tables."""
        rows = self.memory.rows
        kept = rows.kept() if rows is not None else {}
        tables = {one.name: Table.of(one, kept[one.name]) for one in rows.specs} if rows is not None else {}
        return self.state_dict, tables

    def seat(self, worker: GreenletWorker, now_s: float) -> bool:
        """Bring a worker up to where training can begin; False if its function ended before it took part."""
        hello = worker.resume()
        if not isinstance(hello, Hello):
            return False
        self._check_own(worker)
        first = self._first is None
        if first:
            self._first = hello
            blocks = Blocks(self._strategy, self._workers, [hello], False, self._seats, self._holds, self._servers)
            self._machine = Machine(blocks, in_one_process=True)
            copies = blocks.layout.nbytes * self._seats  # processes may read a version where it lies
            what = f"with a copy of the model for each of the {self._seats} workers of this process, training"
            check_room(blocks.shared_bytes + copies, what)  # none of it is touched yet
        else:
            blocks = self.memory.blocks
            blocks.check(hello)
        states = self._program.checkpointer.states
        home = (
            Home(blocks.homes[worker.number], lambda: 1 + self._holds, self._holds) if blocks.gives_back_mean else None
        )
        bring = partial(setattr, blocks, "brought")
        worker.resume(
            Place(
                blocks.layout,
                blocks.ring,
                first,
                Ring(blocks.ring),
                blocks.slots[worker.number],
                home=home,
                held=blocks.held,
                state=partial(self.memory.state_for, worker.number),
                states=str(states.folder) if states is not None else "",
                rows=RowsPlace(blocks.rows, wait, worker.send_ahead, bring) if blocks.rows else None,
            )
        )
        if first:
            self._program.begin(self.memory, now_s)
        assert worker.model is not None, "it introduced itself"
        if tables := named_tables(worker.model):  # workers here ask a server, also where the strategy has none
            check_strategy(self._program.sequencer.switching.whole, tables)
        return True

    def _check_own(self, worker: GreenletWorker) -> None:
        """Two workers over one model would each move it into memory of their own."""
        assert worker.model is not None, "it introduced itself"
        own = WeakSet(module for module in worker.model.modules() if _moves(module))
        self._held.pop(worker.number, None)  # an earlier incarnation's
        for module in own:
            if any(module in others for others in self._held.values()):
                raise ConfigurationError(
                    f"worker {worker.number} gave prepare a {type(module).__name__} that another worker of this run holds: "
                    "simulated and replayed workers are all in this process and share the script's globals; make the model "
                    "and the optimizer in the training function"
                )
        self._held[worker.number] = own

    def close(self) -> None:
        """The memory goes now, and with it the descriptors, not when somebody looks for cycles."""
        self._program.close_memory()
        self._first = self._judged = self._machine = None

    def model(self) -> nn.Module:
        """A copy of the model with the current weights, to be judged."""
        if self._judged is None:
            assert self._first is not None and self._first.structure, "asked for when the workers were made"
            own = Arena.private(self.memory.blocks.layout)
            model = load_structure(self._first.structure, own.layout.specs, own.views)
            rows = self.memory.rows
            reads = RowExchange(named_tables(model), rows.slots, rows.reader, rows.read) if rows else None
            self._judged = own, model, reads
        own, model, reads = self._judged
        if reads is not None:
            reads.begin_to_read()
        self._program.look()
        own.copy_from(self.memory.current)
        return model


def _moves(module: nn.Module) -> bool:
    """Whether training changes what it holds itself; a frozen module may be everybody's."""
    return bool(module._buffers) or any(one.requires_grad for one in module.parameters(recurse=False))
