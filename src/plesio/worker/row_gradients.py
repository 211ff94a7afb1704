"""What torch does to a module's gradients by its parameters, done to the rows of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ref

from torch import nn
from torch.optim import Optimizer

from plesio.tables.module import Table, named_tables
from plesio.worker.capability import Capability
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.introduction import Taking
from plesio.worker.warn import warn


class ZeroGrad:
    """The `zero_grad` of a module with tables, in a run. Copies of the module have torch's."""

    def __init__(self, module: nn.Module) -> None:
        self._module = ref(module)

    def __call__(self, set_to_none: bool = True) -> None:
        module = self._module()
        assert module is not None, "its method is called"
        type(module).zero_grad(module, set_to_none)
        for table in named_tables(module).values():
            table.zero_grad()

    def __reduce__(self) -> Any:
        module = self._module()
        assert module is not None, "it is copied"
        return partial, (type(module).zero_grad, module)  # it loads where there is no plesio


def zero_rows_too(model: nn.Module) -> None:
    """From now on `zero_grad()` of the model, and of each part of it, drops the gradients of rows."""
    for module in model.modules():
        if named_tables(module) and not isinstance(module, Table):
            module.__dict__["zero_grad"] = ZeroGrad(module)


def warn_of_frozen(model: nn.Module) -> None:
    """Warn where a part of the model was frozen, and the rows in it will step: `requires_grad_` goes over parameters."""
    for name, module in model.named_modules():
        tables = [table for table, one in named_tables(module).items() if one.trainable is None]
        if tables and {one.requires_grad for one in module.parameters()} == {False}:
            warn(
                f"{name or 'the model'} is frozen, and its tables ({', '.join(tables)}) are not: requires_grad_() of a module "
                "goes over parameters; call it on each table, with False, or with True if its rows are to step"
            )
            return


class Tables(Capability):
    """Of a worker whose model may have tables: that is known when it takes part. `empty`: optimizers that held nothing else."""

    def __init__(self, empty: Sequence[Optimizer]) -> None:
        self._empty = empty

    def begun(self, taking: Taking, exchange: Exchange) -> Mapping[int, Any]:
        if exchange.rows is not None:
            zero_rows_too(taking.model)
            warn_of_frozen(taking.model)
        return {id(one): one for one in self._empty}
