"""Large embeddings of a model become tables: `worker.prepare(..., tables=N)`.

An `nn.Embedding(sparse=True)` stays the same object, of another class: its indices are the ids, its weight is where the rows
begin, and the rule of its optimizer steps them. A worker makes no index of the rows. The first one's weight goes to the server
as it is, where all its rows are put into the store. So rows are of one kind there, and checkpoints hold all that is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from plesio.errors import ConfigurationError
from plesio.tables.module import Table, TableBag
from plesio.tables.spec import RowAdagrad, RowAdam, RowOptimizer, RowSGD, TableSpec
from plesio.tables.window import Local


class EmbeddingTable(Table):
    """What an `nn.Embedding` becomes. The row of `padding_idx` has no gradient."""

    padding_idx: int | None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """As that of `nn.Embedding`."""
        vectors = super().forward(ids)
        if self.padding_idx is None:
            return vectors
        return torch.where((ids == self.padding_idx).unsqueeze(-1), vectors.detach(), vectors)


class EmbeddingBagTable(TableBag):
    """What an `nn.EmbeddingBag` becomes."""

    include_last_offset: bool

    def forward(
        self, ids: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As that of `nn.EmbeddingBag`."""
        vectors = Table.forward(self, ids.reshape(-1))
        order = torch.arange(len(vectors), device=ids.device).view(ids.shape)
        begin = None if offsets is None else offsets.long()
        last = self.include_last_offset
        return F.embedding_bag(
            order, vectors, begin, mode=self.mode, per_sample_weights=per_sample_weights, include_last_offset=last
        )


_KINDS: dict[type, type[Table]] = {nn.Embedding: EmbeddingTable, nn.EmbeddingBag: EmbeddingBagTable}


def convert(model: nn.Module, optimizers: Sequence[Optimizer], rows: int) -> None:
    """Make a table of each sparse embedding with more than so many rows that one of the optimizers holds, and trains.

    Raises:
        ConfigurationError: one that a table cannot be, or an optimizer that has no rule for rows.
    """
    held = {
        one: (optimizer, group)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for one in group["params"]
    }
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse and module.num_embeddings > rows
    }
    weights = [one for _, one in model.named_parameters(remove_duplicate=False)]
    trained = {name: one for name, one in found.items() if one.weight in held and one.weight.requires_grad}
    for name, module in trained.items():
        if why := _why_not(module, sum(one is module.weight for one in weights)):
            raise ConfigurationError(f"prepare(tables={rows}): {name} cannot become a table, for {why}")
    rules = {name: _rule_of(f"prepare(tables={rows}): {name}", *held[one.weight]) for name, one in trained.items()}
    for name, module in trained.items():
        _become(module, rules[name], *held[module.weight])


def large_dense(model: nn.Module, rows: int) -> list[str]:
    """The embeddings with more than so many rows that become no table, as they lack sparse=True."""
    found = [(name, one) for name, one in model.named_modules() if isinstance(one, (nn.Embedding, nn.EmbeddingBag))]
    return [name for name, one in found if one.num_embeddings > rows and not one.sparse]


def _why_not(module: Any, names: int) -> str:
    if type(module) not in _KINDS:
        return (
            f"it is a {type(module).__name__}, and what that does to an embedding would be lost; leave sparse=True out"
        )
    if module.weight.dtype != torch.float32:
        return f"its weight is {module.weight.dtype}; rows are float32"
    if names > 1:
        return f"its weight has {names} names in the model, and rows are looked up in one place; leave sparse=True out"
    if module.max_norm is not None or module.scale_grad_by_freq:
        return "a table has no max_norm and no scale_grad_by_freq; leave them out, or sparse=True"
    if isinstance(module, nn.EmbeddingBag) and (module.mode == "max" or module.padding_idx is not None):
        return f"a bag of rows has no mode='max' and no padding_idx (got {module.mode!r}, {module.padding_idx})"
    return ""


def _rule_of(what: str, optimizer: Optimizer, group: dict[str, Any]) -> RowOptimizer:
    """The rule that does what `optimizer` does to rows."""
    others = ("momentum", "weight_decay", "lr_decay", "maximize", "initial_lr")
    more = ", ".join(f"{name}={group[name]}" for name in others if group.get(name))
    if type(optimizer) not in (SGD, Adagrad, SparseAdam) or more:
        raise ConfigurationError(
            f"{what}: rows do not step by {type(optimizer).__name__}({more}). Give its weight an optimizer of its own: SGD, "
            "Adagrad or SparseAdam, without momentum, weight decay and a schedule of the learning rate (initial_lr)"
        )
    lr = float(group["lr"])
    if isinstance(optimizer, SGD):
        return RowSGD(lr)
    if isinstance(optimizer, Adagrad):
        return RowAdagrad(lr, group["eps"], group["initial_accumulator_value"], by_element=True)
    one, two = group["betas"]
    return RowAdam(lr, (float(one), float(two)), group["eps"], by_table=True)


def _become(module: Any, rule: RowOptimizer, optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Take the weight out of the optimizer, with what that remembers of it, and let the module be a table."""
    weight, rows = module.weight, module.num_embeddings
    group["params"] = [one for one in group["params"] if one is not weight]
    state = optimizer.state.pop(weight, {})
    spec = TableSpec("table", module.embedding_dim, rule, rows=rows, mode=getattr(module, "mode", ""))
    kept = [state[name].cpu().numpy() for name in ("sum", "exp_avg", "exp_avg_sq") if name in state]
    given = {
        "keys": np.arange(rows),
        "values": weight.detach().cpu().numpy(),
        "state": np.concatenate(kept, 1) if kept else np.zeros((rows, spec.state), np.float32),
        "versions": np.full(rows, int(state.get("step", 0))),
    }
    del module.weight
    module.sparse = False
    module.__class__ = _KINDS[type(module)]
    module.begin(spec, Local(spec, given))

    def same_rate(*_: Any) -> None:
        if float(group["lr"]) != rule.lr:
            raise ConfigurationError(
                f"the learning rate of an embedding that became a table (prepare(tables=...)) was changed to {group['lr']}: its "
                f"rows keep {rule.lr}; give its weight an optimizer of its own, or leave tables= out"
            )

    optimizer.register_step_pre_hook(same_rate)


def weights_of(tables: Mapping[str, Table]) -> dict[str, torch.Tensor]:
    """The weights of the embeddings that became tables, by their names in the user's model."""
    found = {}
    for name, table in tables.items():
        if rows := table.spec(name).rows:
            kept = table.kept()
            weight = np.empty((rows, kept["values"].shape[1]), np.float32)
            weight[kept["keys"]] = kept["values"]
            found[f"{name}.weight"] = torch.from_numpy(weight)
    return found
