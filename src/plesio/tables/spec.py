"""What a table is: the width of its rows, their first values and the rule that steps them.

Each of these raises `ConfigurationError` for a setting that is out of its range.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import COUNT, DECAY, NUMBER, POSITIVE, Allowed

DIM_MAX = 1 << 14
"""Values of a row at most."""
SCALE = 0.05
VERSIONS = (1 << 32) - 1
"""A row's version is below this."""
Id = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
TIMES_MAX = 1 << 31


def _check(owner: object, **fields: Allowed) -> None:
    for name, allowed in fields.items():
        if not allowed.holds(value := getattr(owner, name)):
            said = type(owner).__name__.removesuffix("Spec")  # as users call it
            raise ConfigurationError(f"{said}({name}={value!r}): {name} must be {allowed.words}")


_TIMES = Allowed(f"a whole number from 1 to {TIMES_MAX:,}", lambda value: COUNT.holds(value) and value <= TIMES_MAX)
_YES_NO = Allowed("True or False", lambda value: isinstance(value, bool))
_BETAS = Allowed(
    "a pair of numbers, each at least 0 and below 1",
    lambda value: isinstance(value, tuple) and len(value) == 2 and all(map(DECAY.holds, value)),
)


class RowSGD(msgspec.Struct, frozen=True, tag=True):
    """Plain gradient descent on the rows of a batch, no state: `row -= lr g`, the bits of `torch.optim.SGD` on sparse gradients.

    Args:
        lr: the learning rate, above 0.

    >>> RowSGD(lr=0.1)
    RowSGD(lr=0.1)
    """

    lr: float

    def __post_init__(self) -> None:
        _check(self, lr=POSITIVE)


class RowAdagrad(msgspec.Struct, frozen=True, tag=True):
    """Adagrad with one accumulator a row ("row-wise Adagrad", as in FBGEMM). For a row with gradient g:

        G += mean(g²);  row -= lr g / (√G + eps)

    It needs one number a row where Adagrad by element needs `dim` (Duchi, Hazan and Singer, 2011; by row: Gupta et al., 2014,
    arXiv 1406.4363, and Naumov et al., 2019, arXiv 1906.00091).

    Args:
        lr: the learning rate, above 0.
        eps: added to the root, above 0.
        initial: the accumulator of a new row, at least 0.
        by_element: whether each element has its own accumulator, as under `torch.optim.Adagrad`: `G += g²`.

    >>> RowAdagrad(lr=0.1)
    RowAdagrad(lr=0.1, eps=1e-10, initial=0.0, by_element=False)
    """

    lr: float = 0.05
    eps: float = 1e-10
    initial: float = 0.0
    by_element: bool = False

    def __post_init__(self) -> None:
        _check(self, lr=POSITIVE, eps=POSITIVE, initial=NUMBER, by_element=_YES_NO)


class RowAdam(msgspec.Struct, frozen=True, tag=True):
    """Lazy Adam: only rows with a gradient move, as under `torch.optim.SparseAdam` (Kingma and Ba, 2015, arXiv 1412.6980).

        m += (1 - b1) (g - m);  v += (1 - b2) (g² - v);  row -= lr √(1 - b2ᵗ) / (1 - b1ᵗ) · m / (√v + eps)

    t counts the steps *of this row*. SparseAdam counts those of the whole table, so that a rare row's first step is some 3 times
    as long there (√(1 - b2ᵗ) / (1 - b1ᵗ) with few steps in m and v). For rows stepped every time both are the same.

    Args:
        lr: the learning rate, above 0.
        betas: b1 and b2, at least 0 and below 1.
        eps: added to the root, above 0.
        by_table: whether t counts the times that rows stepped, as under SparseAdam; in a run it is one number for all tables.

    >>> TableSpec("ids", dim=16, optimizer=RowAdam()).state  # m, v and t
    33
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    by_table: bool = False

    def __post_init__(self) -> None:
        _check(self, lr=POSITIVE, betas=_BETAS, eps=POSITIVE, by_table=_YES_NO)


RowOptimizer: TypeAlias = RowSGD | RowAdagrad | RowAdam


class Seen(msgspec.Struct, frozen=True, tag=True):
    """A key gets a row at the n-th step that has a gradient for it: ids that come once or twice take no row.

    Until then its vector is zeros, and its gradients are dropped. They are counted, once a step, in some 30 bytes a key.

    Args:
        times: n, 1 to 2**31.

    >>> Seen(3)
    Seen(times=3)
    """

    times: int

    def __post_init__(self) -> None:
        _check(self, times=_TIMES)


class Unused(msgspec.Struct, frozen=True, tag=True):
    """A row dies when the table's rows have stepped more than so many times since it stepped itself.

    Its key is then as one that never came: a pull gives the first values, and a step bears it anew. No clock of a machine is
    in it. In a run the times are those that the rows of all tables stepped: once a fold, or once a contribution where rows
    step by each. Without a run they are the backward passes that came by the table.

    Args:
        versions: that many, 1 to 2**31.

    >>> Unused(versions=1_000_000)
    Unused(versions=1000000)
    """

    versions: int

    def __post_init__(self) -> None:
        _check(self, versions=_TIMES)


class TableSpec(msgspec.Struct, frozen=True):
    """All that decides about a table's numbers, besides the gradients, as `plesio.Table` has it.

    `rows`: of the embedding that it was, whose indices are the keys; 0: any int64 is a key. `mode`: of `plesio.TableBag`.
    A new row's values are uniform between -scale and scale: a function of seed, key and column alone, so that no order of birth
    and no number of servers changes them.

    >>> spec = TableSpec("ids", dim=16)
    >>> spec.state, spec.row_floats
    (1, 17)
    """

    name: str
    dim: int
    optimizer: RowOptimizer = RowAdagrad()
    scale: float = SCALE
    seed: int = 0
    admit: Seen | None = None
    expire: Unused | None = None
    rows: int = 0
    mode: str = ""

    def __post_init__(self) -> None:
        _check(self, **_TABLE)

    @property
    def state(self) -> int:
        """Numbers that a row keeps beside its values."""
        match self.optimizer:
            case RowAdagrad(by_element=by_element):
                return self.dim if by_element else 1
            case RowAdam(by_table=by_table):
                return 2 * self.dim + (not by_table)
        return 0

    @property
    def row_floats(self) -> int:
        """Values and state of a row."""
        return self.dim + self.state


_TABLE = {
    "dim": Allowed(f"a whole number from 1 to {DIM_MAX:,}", lambda value: COUNT.holds(value) and value <= DIM_MAX),
    "optimizer": Allowed(
        "RowSGD(lr), RowAdagrad() or RowAdam(); a table has no number of rows",
        lambda value: isinstance(value, RowOptimizer),
    ),
    "scale": NUMBER,
    "seed": Allowed(
        "a whole number from -2**63 to 2**63 - 1", lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63
    ),
    "admit": Allowed("Seen(times) or None", lambda value: isinstance(value, Seen | None)),
    "expire": Allowed("Unused(versions) or None", lambda value: isinstance(value, Unused | None)),
}
