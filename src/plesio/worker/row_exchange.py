"""The tables of one worker's model: rows are pulled when a forward pass needs them, and their gradients go with a contribution.

A row is pulled once for a contribution, and stays as it was pulled until that is sent: over several local steps, too, whose
gradients are added. `zero_grad()` drops what no step has taken. Rows for the next contribution may be asked for ahead: then they
travel while this one is computed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from plesio.config.rules import TABLES
from plesio.errors import ConfigurationError
from plesio.protocol.rows import RowsRequest
from plesio.strategy import Strategy
from plesio.strategy.rules import why_not
from plesio.tables.module import Table, flat_of
from plesio.tables.window import Window
from plesio.transport.row_slots import RowSlots
from plesio.worker.row_sources import Copying, Pulling, Wanted

Ask = Callable[[RowsRequest], object]
"""Asks the server; returns when the rows lie in the slot."""


class RowExchange:
    """`tables` of a model by name, in the order of the server's; `slots`: of each server; `several_steps`: a contribution may be
    of several."""

    def __init__(
        self,
        tables: Mapping[str, Table],
        slots: Sequence[RowSlots],
        reader: int,
        ask: Ask,
        send: Ask | None = None,
        several_steps: bool = False,
    ) -> None:
        self._ask, self._send, self.several_steps = ask, send, several_steps
        self._number = 0
        self._serial = secrets.randbits(30)  # an answer to a process before is none to this one
        self._ahead: list[Window] = []  # for the next contribution
        self._wanted_ahead = RowsRequest(0, ())
        self._tables, self._servers = list(tables.values()), len(slots)
        kind = Copying if several_steps or len(slots) > 1 else Pulling
        self._sources = [kind(slots, reader, table, self._pull) for table in range(len(self._tables))]
        for table, source in zip(self._tables, self._sources, strict=True):
            table.source = source

    @property
    def any(self) -> bool:
        """Whether the contribution under way pulled any row."""
        return any(len(table.window.keys) for table in self._tables)

    def begin_to_read(self) -> None:
        """Who only reads knows no row any more."""
        self.begin(self._number + 1)

    def begin(self, number: int) -> None:
        """Contribution `number` begins, with the rows that were asked for ahead."""
        self._number = number
        for table, source in zip(self._tables, self._sources, strict=True):
            table.window.closed = True
            source.number = number
        if self._ahead:
            self._ask(self._wanted_ahead)
            for table, source, window in zip(self._tables, self._sources, self._ahead, strict=True):
                if len(window.keys):
                    window.rows = source.rows(len(window.keys))
                table.window = window
            self._ahead = []

    def lose(self) -> None:
        """What was asked for ahead does not come any more."""
        self._ahead = []

    def ask_ahead(self, ids: Mapping[Table, torch.Tensor]) -> None:
        """Ask for the rows that the next contribution will look up, and go on; once a contribution."""
        assert self._send is not None, "it trains"
        if self._ahead:  # the loop did not step for the batch before
            return
        number, windows = self._number + 1, [Window() for _ in self._tables]
        for table, flat in ids.items():
            if table not in self._tables:
                raise ConfigurationError("worker.ahead: a table that is not in the prepared model")
            windows[self._tables.index(table)].expect(flat_of(flat))
        wanted = [source.put(window.keys, 0, number) for source, window in zip(self._sources, windows, strict=True)]
        self._ahead = windows
        self._wanted_ahead = self._request(number, wanted, ahead=True)
        self._send(self._wanted_ahead)

    def _pull(self, table: int, wanted: Wanted, number: int) -> None:
        """Have the server lay rows of one table."""
        others = [(0, 0)] * self._servers
        self._ask(self._request(number, [wanted if one == table else others for one in range(len(self._tables))]))

    def _request(self, number: int, by_table: Sequence[Wanted], ahead: bool = False) -> RowsRequest:
        self._serial += 1
        wanted = tuple(table[server] for server in range(self._servers) for table in by_table)
        return RowsRequest(number, wanted, ahead, self._serial)

    def stepped(self) -> bool:
        """A step takes the gradients that there are; whether these are finite."""
        finite = True
        for table, source in zip(self._tables, self._sources, strict=True):
            if (rows := table.window.rows) is not None:
                finite = finite and bool(np.isfinite(rows.gradients[rows.touched != 0]).all())
                source.take(rows)
        return finite

    def zero_grad(self) -> None:
        for table in self._tables:
            table.zero_grad()


def check_strategy(strategy: Strategy, tables: Mapping[str, Table]) -> None:
    """Raise `ConfigurationError` where nothing at a server would step the rows."""
    if why := why_not(TABLES, strategy):
        raise ConfigurationError(
            f"the model has tables ({', '.join(tables)}), and {strategy.name} cannot step their rows: {why}"
        )
