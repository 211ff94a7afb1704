"""What a model contains: ids in, vectors out, and rows that need no place among its parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import nn
from torch._compile import _disable_dynamo

from plesio import tables
from plesio.errors import CheckpointError, ConfigurationError
from plesio.tables.file import load_rows, save_rows
from plesio.tables.spec import SCALE, RowAdagrad, RowOptimizer, Seen, TableSpec, Unused
from plesio.tables.window import Local, Source, Window, WithGradient, vectors_of


class Table(nn.Module):
    """An embedding by key: any int64 is an id, and its row is born when it is first trained.

    It has no `nn.Parameter` and no optimizer holds it: its own rule steps the rows that have a gradient, once a backward pass, in
    the order in which they were first looked up. In a run that is done where the rows lie; else they lie in this process.
    Without gradients (`torch.no_grad()`) ids only have values, and no row is born: evaluation never grows a table.
    A copy (`copy.deepcopy`, pickle, `state_dict`) has rows of its own; in a run it has none, as they lie elsewhere.

    Args:
        dim: numbers of a row.
        optimizer: `ps.RowAdagrad()`, `ps.RowAdam()` or `ps.RowSGD(lr)`.
        scale: new rows are uniform between -scale and scale; None: 0.05.
        seed: of the first values, a function of seed, id and column. None: drawn here from torch's generator, so that
            `torch.manual_seed` says how a table begins, and two tables differ. Rows that are loaded bring theirs.
        admit: `ps.Seen(3)`: an id gets a row at the third step that has a gradient for it; its vector is zeros until then.
        expire: `ps.Unused(versions=100_000)`: a row dies that was not among the last 100,000 steps of rows; its id is new then.

    Raises:
        ConfigurationError: a setting out of its range; ids that are no tensor of int64 or int32.

    >>> ids = ps.Table(2, ps.RowSGD(lr=0.5), seed=0)
    >>> before = ids(torch.tensor([[7, -1], [7, 7]]))
    >>> before.sum().backward()
    >>> (before - ids(torch.tensor([[7, -1], [7, 7]])))[0].tolist()  # 7 was looked up three times
    [[1.5, 1.5], [0.5, 0.5]]
    >>> ids.rows
    2
    """

    def __init__(
        self,
        dim: int,
        optimizer: RowOptimizer | None = None,
        *,
        scale: float | None = None,
        seed: int | None = None,
        admit: Seen | None = None,
        expire: Unused | None = None,
    ) -> None:
        super().__init__()
        scale = SCALE if scale is None else scale
        seed = int(torch.randint(-(1 << 63), (1 << 63) - 1, (), device="cpu")) if seed is None else seed
        self.begin(TableSpec("table", dim, optimizer or RowAdagrad(), scale, seed, admit, expire))

    def begin(self, spec: TableSpec, source: Source | None = None) -> None:
        """Be such a table, with rows from there."""
        self._spec, self._source = spec, source
        self._window: Window | None = None
        self._pass = -1  # the backward pass under way,
        self._seen: list[Window] = []  # and what it came by
        self.trainable: bool | None = None  # what `requires_grad_` said
        self._dtype = torch.get_default_dtype()  # of vectors; rows are float32

    @classmethod
    def of(cls, spec: TableSpec, rows: Mapping[str, Any]) -> Table:
        """A table of this process with these rows, as a store keeps them."""
        table = TableBag(spec.dim, seed=spec.seed) if spec.mode else cls(spec.dim, seed=spec.seed)
        table.begin(spec, Local(spec, rows))
        return table

    def spec(self, name: str) -> TableSpec:
        """What this table is, under a name."""
        return replace(self._spec, name=name)

    @property
    def source(self) -> Source:
        """Where rows come from: a store of this process, unless a run sets another. To set one forgets what was looked up."""
        if self._source is None:
            self._source = Local(self._spec)
        return self._source

    @source.setter
    def source(self, source: Source) -> None:
        self._source, self._window = source, None

    @property
    def window(self) -> Window:
        """What was looked up with gradients since the rows were last stepped."""
        if self._window is None or self._window.closed:
            self._window = Window()
        return self._window

    @window.setter
    def window(self, window: Window) -> None:
        self._window = window

    @property
    def rows(self) -> int:
        """How many rows lie in this process."""
        return self._source.rows if isinstance(self._source, Local) else 0

    def __len__(self) -> int:
        """How many rows there are. Raises ConfigurationError in a run."""
        return self._own("len").rows

    def __bool__(self) -> bool:
        return True  # without rows, too

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Have vectors of the dtype that `to`, `half` and such give parameters."""
        self._dtype = fn(torch.empty(0, dtype=self._dtype)).dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def kept(self) -> dict[str, NDArray[Any]]:
        """A copy of the rows that lie in this process: keys, values, state, versions. Raises ConfigurationError in a run."""
        return self._own("kept").kept()

    @_disable_dynamo  # torch.compile would trace NumPy; as a decorator, torch.compiler.disable imports 1.5 s of torch
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids, an int64 or int32 tensor of any shape: (*ids.shape, dim), on their device, of the module's dtype.

        Rows are kept and stepped in float32. `to(torch.bfloat16)`, as of a whole model, gives vectors of that dtype.
        """
        flat, rows = flat_of(ids), self._spec.rows
        if not len(flat):
            return torch.empty(*ids.shape, self._spec.dim, device=ids.device, dtype=self._dtype)
        if rows and not 0 <= flat.min() <= flat.max() < rows:
            raise IndexError(f"index out of range: got {flat.min()} to {flat.max()}, and there are {rows:,} rows")
        if torch.is_grad_enabled() and self.trainable is not False:
            window, needs_gradient = self.window, torch.empty(0, requires_grad=True)
            positions = window.look_up(flat, self.source)
            vectors: torch.Tensor = WithGradient.apply(needs_gradient, window, positions, self._came_by)  # type: ignore[no-untyped-call]
        else:
            distinct = tables.Distinct()
            positions = distinct.add(flat)
            values = np.empty((len(distinct), self._spec.dim), np.float32)
            self.source.read(distinct.keys, values)
            vectors = vectors_of(values, positions)
        return vectors.view(*ids.shape, self._spec.dim).to(ids.device, self._dtype)

    def _came_by(self, window: Window, positions: NDArray[np.int64], gradients: NDArray[np.float32]) -> None:
        if self._is_local():
            self._to_be_stepped(window)
        elif window.closed:
            raise ConfigurationError(
                "a backward pass came after the step that its rows were for; call it before that step"
            )
        window.add(positions, gradients)

    def _to_be_stepped(self, window: Window) -> None:
        """At the end of this backward pass, without a run."""
        number = torch._C._current_graph_task_id()
        if number == -1:
            raise ConfigurationError("a table's gradient came outside of a backward pass; call loss.backward()")
        if number != self._pass:  # a pass that raised never came to its end: what it saw is forgotten
            self._pass, self._seen = number, []
            torch.autograd.Variable._execution_engine.queue_callback(self._step)
        if window not in self._seen:
            self._seen.append(window)

    def _step(self) -> None:
        seen, self._seen, self._pass = self._seen, [], -1
        self.window.closed = True
        for window in seen:
            window.closed = True
            if isinstance(self._source, Local):
                self._source.step(window)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Whether rows step. Those of a frozen table are looked up as under `torch.no_grad()`."""
        self.trainable = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of rows that no step has taken: in a run. Without one there are none."""
        if (rows := self.window.rows) is not None:
            rows.touched[:] = 0

    def extra_repr(self) -> str:
        """The text within the brackets of its `repr`."""
        where = f"{self.rows:,} rows in this process" if self._is_local() else "its rows lie where the run has them"
        life = "".join(f", {one}" for one in (self._spec.admit, self._spec.expire) if one is not None)
        return f"{self._spec.dim}, {self._spec.optimizer}{life}; {where}"

    def _is_local(self) -> bool:
        return self._source is None or isinstance(self._source, Local)

    def _own(self, what: str) -> Local:
        source = self.source
        if not isinstance(source, Local):
            raise ConfigurationError(
                f"{what}: in a run the rows of a table lie elsewhere; do so before or after the run"
            )
        return source

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """The entry of `state_dict`: all rows; in a run, nothing, with a warning."""
        if self._source is not None and not isinstance(self._source, Local):
            warnings.warn(
                "state_dict() has no rows of a table in a run, for they lie at the server: take them from run.tables when the "
                "run is over, or from its checkpoints (checkpoint=ps.Checkpoint(...))",
                RuntimeWarning,
                stacklevel=2,
            )
        kept = self.kept() if self._is_local() else {}
        return {name: torch.from_numpy(array) for name, array in kept.items()}

    def set_extra_state(self, state: dict[str, torch.Tensor]) -> None:
        """From `load_state_dict`; an entry without rows changes nothing."""
        if state:
            self._restore("load_state_dict", state)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        if f"{prefix}_extra_state" in state_dict:  # a run's is without rows, which are in run.tables
            super()._load_from_state_dict(state_dict, prefix, *others)

    def save(self, path: str | Path) -> None:
        """Write all rows into a file of safetensors: keys, values, state, versions. Raises CheckpointError if it cannot be."""
        save_rows(path, self._spec, self._own("save").kept())

    def load(self, path: str | Path) -> None:
        """Have the rows of such a file instead, or those of a checkpoint, whose first file of the table is at `path`.

        Raises CheckpointError if it is none, or of another width or rule.
        """
        self._restore("load", load_rows(path, self._spec))

    def _restore(self, what: str, rows: Mapping[str, Any]) -> None:
        local = self._own(what)
        try:
            local.restore(rows)
        except CheckpointError as error:
            this = f"this table has dim={self._spec.dim} and {self._spec.optimizer}"
            raise CheckpointError(f"{what}: {error}; {this}") from error
        self._spec = replace(self._spec, seed=local.store.spec.seed)
        self.window.closed = True

    def to_embedding(self) -> tuple[nn.Embedding, torch.Tensor]:
        """An `nn.Embedding` with all rows, and the key of each, in their order of birth."""
        self._own("to_embedding")
        kept = self.get_extra_state()
        rows, dim = kept["values"].shape
        return nn.Embedding(rows, dim, _weight=kept["values"]), kept["keys"]

    def __getstate__(self) -> dict[str, Any]:
        state = {name: one for name, one in self.__dict__.items() if name not in ("_window", "_pass", "_seen")}
        return state if self._is_local() else state | {"_source": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.begin(state["_spec"])
        super().__setstate__(state)  # type: ignore[no-untyped-call]


@contextmanager
def without_rows(tables: Iterable[Table]) -> Iterator[None]:
    """Inside, copies of these tables have no rows."""
    sources = [(one, one._source) for one in tables]
    try:
        for one, _ in sources:
            one._source = None
        yield
    finally:
        for one, source in sources:
            one._source = source


class TableBag(Table):
    """A `Table` whose vectors are summed, or averaged, over the last dimension of the ids: as `nn.EmbeddingBag`, by key.

    Args:
        mode: "sum" or "mean"; `others`, as `dim` and `optimizer`: as for `Table`.

    Raises:
        ConfigurationError: an unknown mode, a setting out of its range; ids that are no tensor of bags.

    >>> bags = ps.TableBag(4, mode="mean")
    >>> bags(torch.tensor([[1, 2, 3], [4, 5, 6]])).shape
    torch.Size([2, 4])
    """

    def __init__(self, dim: int, optimizer: RowOptimizer | None = None, *, mode: str = "sum", **others: Any) -> None:
        if mode not in ("sum", "mean"):
            raise ConfigurationError(f"mode={mode!r}: allowed is 'sum' or 'mean'")
        super().__init__(dim, optimizer, **others)
        self._spec = replace(self._spec, mode=mode)

    @property
    def mode(self) -> str:
        return self._spec.mode

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """One vector a bag. The last dimension of `ids` is a bag; or `ids` is flat and bags begin at `offsets`."""
        flat = torch.is_tensor(ids) and ids.dim() == 1
        if flat != (offsets is not None) or (torch.is_tensor(ids) and ids.dim() == 0):
            raise ConfigurationError(
                "ids: allowed are bags along the last of several dimensions, or flat ids with offsets"
            )
        vectors = super().forward(ids).view(-1, self._spec.dim)
        order = torch.arange(len(vectors), device=ids.device)
        bags = order if flat else order.view(-1, ids.shape[-1])
        begin = None if offsets is None else offsets.long()
        found = F.embedding_bag(bags, vectors, begin, mode=self.mode)
        return found if flat else found.view(*ids.shape[:-1], self._spec.dim)

    def extra_repr(self) -> str:
        """The text within the brackets of its `repr`."""
        return f"{super().extra_repr()}, mode={self.mode!r}"


def named_tables(model: nn.Module) -> dict[str, Table]:
    """The tables of a model by their paths in it, which are those of before it was compiled.

    >>> list(named_tables(nn.ModuleDict({"user": nn.ModuleDict({"table": ps.Table(4)}), "ids": ps.Table(4)})))
    ['user.table', 'ids']
    """
    found = [(name.split("."), one) for name, one in model.named_modules() if isinstance(one, Table)]
    return {".".join(part for part in path if part != "_orig_mod") or "table": one for path, one in found}


def flat_of(ids: Any) -> NDArray[np.int64]:
    """The ids in a flat array. Raises ConfigurationError for what is no tensor of int64 or int32."""
    if not torch.is_tensor(ids) or ids.dtype not in (torch.int64, torch.int32):
        got, use = (ids.dtype, "ids.long()") if torch.is_tensor(ids) else (type(ids).__name__, "torch.tensor(ids)")
        raise ConfigurationError(
            f"ids: got {got}, allowed is a tensor of torch.int64 or int32; use {use} if they are whole numbers, ps.ids_of if "
            "strings"
        )
    flat: NDArray[np.int64] = ids.detach().cpu().reshape(-1).long().numpy()
    return flat
