"""`worker.ahead`: rows of tables that travel while the loop computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from plesio.errors import ConfigurationError
from plesio.tables.module import Table
from plesio.worker.data.use import B, one_ahead
from plesio.worker.prepared import Prepared


class Ahead(Prepared):
    """What a training function with tables may say."""

    def ahead(self, batches: Iterable[B], ids: Callable[[B], Mapping[Table, torch.Tensor]]) -> Iterator[B]:
        """The same batches; the rows of tables that the next one needs travel while the loop is at one.

            for ids, labels in worker.ahead(loader, lambda batch: {net.ids: batch[0]}):
                ...

        Rows that were asked for ahead are those of before this worker's own step: stale by 1, as others' steps make them, too.
        So a worker that is alone asks for nothing ahead. Nor is anything asked for where rows may be of several steps
        (`local_sgd`), the worker goes on while its answer travels, or the loop has no gradients (`torch.no_grad()`). A loop that
        steps once for several batches gains nothing: rows are asked for ahead once a step. Under `rows="with"` in rounds rows
        come after the fold, and only their keys travel ahead.

        Args:
            batches: the prepared loader, or any other iterable.
            ids: of a batch, what is to be looked up in which table of the prepared model. What it leaves out is pulled when it is
                looked up.

        Raises:
            ConfigurationError: before prepare, a table of another model, or ids that are no tensor of int64 or int32.
        """
        exchange = self._exchange_for("ahead")
        if exchange.rows is None:
            raise ConfigurationError("worker.ahead asks for rows of tables, and the prepared model has none (ps.Table)")
        rows = exchange.rows
        if self.workers == 1 or rows.several_steps or exchange.late or not torch.is_grad_enabled():
            return iter(batches)
        return one_ahead(batches, self._used, lambda batch: rows.ask_ahead(ids(batch)))
