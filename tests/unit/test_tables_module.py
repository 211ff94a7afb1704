"""Tables in a model, without a run: against `nn.Embedding`, and what a copy, a file and a state_dict hold."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plesio as ps
from plesio.errors import CheckpointError, ConfigurationError
from plesio.tables.module import Table, TableBag, named_tables
from plesio.tables.spec import TableSpec
from plesio.tables.window import Rows

ROWS, DIM = 40, 6


def batch(source: torch.Generator, distinct: bool = False) -> torch.Tensor:
    ids = torch.randperm(ROWS, generator=source)[:24] if distinct else torch.randint(0, ROWS, (24,), generator=source)
    return ids.view(8, 3)


def twins(table: Table, sparse: bool) -> tuple[Any, Any]:
    """Two linear layers alike, and an embedding that begins as the table does."""
    torch.manual_seed(0)
    lines = nn.Linear(DIM, 3), nn.Linear(DIM, 3)
    lines[1].load_state_dict(lines[0].state_dict())
    with torch.no_grad():
        return lines, nn.Embedding(ROWS, DIM, sparse=sparse, _weight=table(torch.arange(ROWS)).clone())


def same(table: Table, embedding: nn.Embedding | nn.EmbeddingBag) -> bool:
    ids = torch.arange(ROWS)
    with torch.no_grad():
        rows = table(ids[:, None]) if isinstance(table, TableBag) else table(ids)
    return torch.equal(rows, embedding.weight)


@pytest.mark.parametrize("sparse", [True, False])
def test_a_loop_has_the_bits_of_an_embedding(sparse: bool) -> None:
    """A sparse one's with distinct ids: those of equal ids it adds in no certain order."""
    table = ps.Table(DIM, ps.RowSGD(lr=0.1), seed=3)
    lines, embedding = twins(table, sparse)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    source = torch.Generator().manual_seed(1)
    for _ in range(20):
        ids = batch(source, distinct=sparse)
        optimizer.zero_grad()
        lines[0](table(ids)).square().mean().backward()
        lines[1](embedding(ids)).square().mean().backward()
        optimizer.step()
        assert same(table, embedding)
    assert 0 < table.rows <= ROWS


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_are_those_of_torch(mode: str) -> None:
    table = ps.TableBag(DIM, ps.RowSGD(lr=0.1), mode=mode)
    with torch.no_grad():
        weight = table(torch.arange(ROWS)[:, None]).clone()
    bag = nn.EmbeddingBag(ROWS, DIM, mode=mode, _weight=weight)
    optimizer, source = torch.optim.SGD(bag.parameters(), lr=0.1), torch.Generator().manual_seed(1)
    for _ in range(5):
        ids = batch(source)
        optimizer.zero_grad()
        one, other = table(ids), bag(ids)
        assert torch.equal(one, other)
        one.square().mean().backward()
        other.square().mean().backward()
        optimizer.step()
    assert same(table, bag)
    with torch.no_grad():
        assert torch.equal(table(ids.view(2, 4, 3)), bag(ids).view(2, 4, DIM))
        offsets = torch.tensor([0, 3, 3, 10])
        assert torch.equal(table(ids.flatten(), offsets), bag(ids.flatten(), offsets))


def test_two_lookups_of_one_loss_step_a_key_once() -> None:
    table = ps.Table(DIM, ps.RowAdagrad(lr=0.1))
    one, other = table(torch.tensor([1, 2, 1])), table(torch.tensor([3, 1]))
    assert table.window.keys.tolist() == [1, 2, 3]
    (one.sum() + 2 * other.sum()).backward()
    kept = table.get_extra_state()
    assert kept["keys"].tolist() == [1, 2, 3]
    assert kept["state"].flatten().tolist() == [16.0, 1.0, 4.0]
    assert kept["versions"].tolist() == [1, 1, 1]


def test_each_pass_is_a_step_and_what_it_did_not_come_by_stays() -> None:
    table = ps.Table(DIM, ps.RowSGD(lr=1.0))
    ids = torch.tensor([1, 2])
    before = table(ids).detach()
    unused, used = table(torch.tensor([7, 1])), table(ids)
    used.sum().backward(retain_graph=True)
    assert table.get_extra_state()["keys"].tolist() == [1, 2]
    used.sum().backward()  # again, by the graph of then
    unused[1:].sum().backward()  # a second loss, which was looked up before that step
    kept = table.get_extra_state()
    assert kept["keys"].tolist() == [1, 2, 7]
    assert kept["versions"].tolist() == [3, 2, 3]
    with torch.no_grad():
        torch.testing.assert_close(table(ids), before - torch.tensor([[3.0], [2.0]]))


def test_without_gradients_nothing_is_kept() -> None:
    table = ps.Table(DIM)
    ids = torch.arange(1000)
    with torch.no_grad():
        values = table(ids)
    with torch.inference_mode():
        assert torch.equal(table(ids), values)
    assert torch.equal(table(ids), values)
    table(ids).detach()
    assert table.rows == 0
    weight = torch.ones(1, requires_grad=True)
    assert torch.autograd.grad((weight * table(ids)).sum(), weight)[0] == values.sum()
    assert table.rows == 0


def test_a_pass_that_raises_does_not_stop_those_after_it() -> None:
    table = ps.Table(DIM, ps.RowSGD(lr=1.0))

    def fail(gradient: torch.Tensor) -> None:
        raise RuntimeError("no")

    values = table(torch.tensor([1]))
    values.register_hook(fail)
    with pytest.raises(RuntimeError, match="no"):
        values.sum().backward()
    assert table.rows == 0
    table(torch.tensor([2])).sum().backward()
    assert 2 in table.get_extra_state()["keys"]


def test_ids_of_any_shape() -> None:
    table = ps.Table(DIM)
    for shape in ((), (0,), (3,), (2, 0, 3), (2, 3, 4)):
        ids = torch.zeros(shape, dtype=torch.int64)
        assert table(ids).shape == (*shape, DIM)
        with torch.no_grad():
            assert table(ids).shape == (*shape, DIM)
    ids = torch.arange(12).view(3, 4).T
    with torch.no_grad():
        assert torch.equal(table(ids), table(ids.contiguous()))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ps.Table(4)(torch.ones(2)), "ids: got torch.float32, allowed is a tensor of torch.int64"),
        (lambda: ps.Table(4)(torch.ones(2, dtype=torch.int16)), "ids: got torch.int16"),
        (lambda: len(in_a_run()), "len: in a run the rows of a table lie elsewhere"),
        (lambda: ps.Table(4)([1, 2]), r"ids: got list, .* use torch.tensor\(ids\) .*, ps.ids_of if strings"),
        (lambda: ps.Table(0), r"dim must be a whole number from 1"),
        (lambda: ps.TableBag(4, mode="max"), "mode='max': allowed is 'sum' or 'mean'"),
        (lambda: ps.TableBag(4)(torch.arange(3)), "ids: allowed are bags"),
        (lambda: ps.TableBag(4)(torch.ones(2, 2)), "ids: got torch.float32"),
        (lambda: ps.RowSGD(lr=0), r"RowSGD\(lr=0\): lr must be a number above 0"),
        (lambda: ps.RowAdagrad(eps=0.0), r"RowAdagrad\(eps=0.0\): eps must be"),
        (lambda: ps.RowAdagrad(initial=-1), r"initial must be a number of at least 0"),
        (lambda: ps.RowAdam(betas=(0.9, 1.0)), r"betas must be a pair of numbers, each at least 0 and below 1"),
        (lambda: TableSpec("ids", 0), r"Table\(dim=0\): dim must be a whole number from 1 to 16,384"),
        (lambda: TableSpec("ids", 4, "adam"), r"optimizer must be RowSGD\(lr\), RowAdagrad\(\) or RowAdam\(\)"),  # type: ignore[arg-type]
        (lambda: TableSpec("ids", 4, scale=float("nan")), "scale must be a number of at least 0"),
        (lambda: TableSpec("ids", 4, seed=2**63), r"seed must be a whole number from -2\*\*63"),
        (lambda: ps.Seen(0), r"Seen\(times=0\): times must be a whole number from 1 to 2,147,483,648"),
        (lambda: ps.Seen(True), "times must be a whole"),
        (lambda: ps.Unused(versions=1.5), r"Unused\(versions=1.5\): versions must be a whole"),  # type: ignore[arg-type]
        (lambda: ps.Unused(2**31 + 1), "versions must be a whole"),
        (lambda: ps.Table(2, admit=3), r"Table\(admit=3\): admit must be Seen\(times\) or None"),  # type: ignore[arg-type]
        (lambda: ps.TableBag(2, expire=ps.Seen(3)), r"expire must be Unused\(versions\) or None"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", [ps.Table, ps.TableBag])
def test_vectors_have_the_dtype_of_the_module(kind: type[Table], dtype: torch.dtype) -> None:
    net = nn.ModuleDict({"ids": kind(4, ps.RowSGD(lr=0.5), seed=3), "top": nn.Linear(4, 1)}).to(dtype)
    ids = torch.arange(6, dtype=torch.int32).view(3, 2)
    for one in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert one["ids"](ids).dtype == one["ids"](ids[:0]).dtype == dtype
        with torch.no_grad():
            before = one["ids"](ids)
        one["top"](one["ids"](ids)).sum().backward()
        assert one["ids"].kept()["values"].dtype == np.float32
        assert (one["ids"](ids) != before).any()
    assert net.float()["ids"](ids).dtype == torch.float32


def test_a_table_is_made_in_torchs_default_dtype_as_a_layer_is() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert nn.Linear(4, 1)(ps.Table(4)(torch.arange(3))).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_offsets_of_int32_are_taken_as_an_embedding_bag_takes_them() -> None:
    bags, ids, offsets = ps.TableBag(4), torch.arange(5), torch.tensor([0, 2])
    assert torch.equal(bags(ids.int(), offsets.int()), bags(ids, offsets))


def test_a_table_without_rows_has_a_length_and_is_true() -> None:
    table = ps.Table(4)
    assert table
    assert len(table) == 0
    table(torch.tensor([3, 4, 3])).sum().backward()
    assert len(table) == table.rows == 2


def in_a_run() -> Table:
    table = ps.Table(4)
    table.source = Elsewhere()
    return table


class Elsewhere:
    """A source that is not of this process."""

    def __init__(self) -> None:
        self.pulls: list[list[int]] = []

    def read(self, keys: Any, out: Any) -> None:
        out[:] = keys[:, None]

    def pull(self, keys: Any, before: Rows | None) -> Rows:
        self.pulls.append(keys.tolist())
        values = np.repeat(keys[:, None], 2, 1).astype(np.float32)
        new = Rows(values, np.zeros_like(values), np.zeros(len(keys), np.uint8))
        return new if before is None else Rows(*map(np.concatenate, zip(before, new, strict=True)))


def test_rows_from_elsewhere_collect_their_gradients() -> None:
    table, source = ps.Table(2), Elsewhere()
    table(torch.tensor([1])).sum().backward()
    table.source = source
    for _ in range(2):
        table(torch.tensor([5, 3, 5])).sum().backward()
    late = table(torch.tensor([3, 9]))
    window = table.window
    assert source.pulls == [[5, 3], [9]]
    assert window.keys.tolist() == [5, 3, 9]
    rows = window.rows
    assert rows is not None
    assert rows.touched.tolist() == [1, 1, 0]
    assert rows.gradients[:, 0].tolist() == [4.0, 2.0, 0.0]
    window.closed = True
    assert (len(table.window.keys), table.window.rows) == (0, None)
    with pytest.raises(ConfigurationError, match="a backward pass came after the step"):
        late.sum().backward()
    with torch.no_grad():
        assert table(torch.tensor([4])).tolist() == [[4.0, 4.0]]
    assert "where the run has them" in repr(table)
    with pytest.warns(RuntimeWarning, match="has no rows of a table in a run"):
        assert table.get_extra_state() == {}
    with pytest.raises(ConfigurationError, match="save: in a run the rows of a table lie elsewhere"):
        table.save("nowhere")
    assert copy.deepcopy(table).rows == 0


def test_a_pull_that_fails_leaves_no_keys_without_rows() -> None:
    table, source = ps.Table(2), Elsewhere()
    table.source = source
    source.pull = lambda keys, at: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        table(torch.tensor([1]))
    assert len(table.window.keys) == 0


def trained(seed: int = 0) -> Table:
    table = ps.Table(DIM, ps.RowAdam(), seed=seed)
    for _ in range(3):
        table(torch.tensor([5, -7, 2**63 - 1])).sum().backward()
    return table


def through_pickle(table: Table) -> Table:
    copied: Table = pickle.loads(pickle.dumps(table))
    return copied


@pytest.mark.parametrize("copy_of", [copy.deepcopy, through_pickle])
def test_a_copy_has_rows_of_its_own(copy_of: Any) -> None:
    table = trained()
    other = copy_of(table)
    assert equal(table, other)
    for one in (table, other):
        one(torch.tensor([5, 6])).sum().backward()
    assert equal(table, other)
    other(torch.tensor([5])).sum().backward()
    assert not equal(table, other)


def equal(one: Table, other: Table) -> bool:
    states = one.get_extra_state(), other.get_extra_state()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_state_dict_has_the_rows() -> None:
    model, other = nn.Sequential(trained()), nn.Sequential(ps.Table(DIM, ps.RowAdam()))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert equal(model[0], other[0])  # type: ignore[arg-type]
    other.load_state_dict({"0._extra_state": {}})  # what `state_dict` has in a run
    assert equal(model[0], other[0])  # type: ignore[arg-type]


def test_a_model_loads_what_a_run_returns() -> None:
    """`run.state_dict` has no rows; `run.tables` has."""
    model = nn.ModuleDict({"ids": trained(), "top": nn.Linear(2, 1)})
    dense = nn.ModuleDict({"top": nn.Linear(2, 1)}).state_dict()
    model.load_state_dict(dense)
    assert model["ids"].rows == 3
    assert torch.equal(model["top"].weight, dense["top.weight"])
    with pytest.raises(RuntimeError, match=r"Missing key.*top\.bias"):
        model.load_state_dict({"top.weight": dense["top.weight"]})


def first_values(table: Table) -> torch.Tensor:
    with torch.no_grad():
        return table(torch.arange(ROWS))


def test_a_seed_is_drawn_where_none_is_given() -> None:
    torch.manual_seed(3)
    one, other = ps.Table(DIM), ps.Table(DIM)
    torch.manual_seed(3)
    again, given = ps.Table(DIM), ps.Table(DIM, seed=5)
    assert torch.equal(first_values(one), first_values(again))
    assert not torch.equal(first_values(one), first_values(other))
    assert torch.equal(first_values(given), first_values(ps.Table(DIM, seed=5)))
    with torch.device("meta"):
        ps.Table(DIM)


def test_rows_bring_their_seed(tmp_path: Path) -> None:
    """So an id that was never trained has the vector that it had before."""
    table = ps.Table(DIM)
    table.save(tmp_path / "ids.safetensors")
    loaded, stated, empty = ps.Table(DIM), ps.Table(DIM), through_pickle(table)
    loaded.load(tmp_path / "ids.safetensors")
    stated.load_state_dict(table.state_dict())
    for one in (loaded, stated, empty):
        assert torch.equal(first_values(one), first_values(table))
    assert not torch.equal(first_values(ps.Table(DIM)), first_values(table))
    stated.load_state_dict(ps.Table(DIM, seed=4).state_dict())
    assert stated.spec("ids").seed == 4


def test_saved_and_loaded(tmp_path: Path) -> None:
    table, other = trained(), ps.Table(DIM, ps.RowAdam(lr=0.5))
    table.save(tmp_path / "ids.safetensors")
    other.load(tmp_path / "ids.safetensors")
    assert equal(table, other)
    assert [path.name for path in tmp_path.iterdir()] == ["ids.safetensors"]
    with pytest.raises(CheckpointError, match=r"has rows of dim=6 under RowAdam.*; this table has dim=4 and RowAdam"):
        ps.Table(4, ps.RowAdam()).load(tmp_path / "ids.safetensors")
    with pytest.raises(CheckpointError, match="this table has dim=6 and RowAdagrad"):
        ps.Table(DIM).load(tmp_path / "ids.safetensors")
    with pytest.raises(CheckpointError, match=r"load_state_dict: state: got .*; this table has dim=6 and RowAdagrad"):
        ps.Table(DIM).load_state_dict(table.state_dict())
    with pytest.raises(CheckpointError, match="cannot be read"):
        table.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="cannot be written"):
        table.save(tmp_path / "nothing" / "ids")
    (tmp_path / "bad").write_bytes(b"bad")
    with pytest.raises(CheckpointError, match="cannot be read"):
        table.load(tmp_path / "bad")


def test_ids_of_strings_are_xxh3_of_their_bytes() -> None:
    strings = ["", "a", "user:17", "é" * 100, "user:17"]
    ids = ps.ids_of(strings)
    assert [int(one) % 2**64 for one in ids[:2]] == [0x2D06800538D394C2, 0xE6C632B61E964E1F]  # XXH3's own vectors
    assert (len(set(ids.tolist())), ids.dtype) == (4, torch.int64)
    assert torch.equal(ps.ids_of(np.array(strings)), ids)
    assert ps.ids_of(iter([])).shape == (0,)
    assert ps.Table(4)(ps.ids_of(strings)).shape == (5, 4)
    for wrong, words in (("user:17", "one alone is"), ([b"a"], "got b'a' .bytes."), ([3], "got 3 .int.")):
        with pytest.raises(ConfigurationError, match=words):
            ps.ids_of(wrong)  # type: ignore[arg-type]


def test_an_embedding_of_a_table() -> None:
    table = trained()
    embedding, keys = table.to_embedding()
    assert keys.tolist() == [5, -7, 2**63 - 1]
    with torch.no_grad():
        assert torch.equal(embedding(torch.arange(3)), table(keys))
    assert embedding.weight.requires_grad


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch.compile
def test_tables_by_their_paths() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ids = ps.Table(DIM, ps.RowSGD(lr=1.0))
            self.user = nn.ModuleDict({"table": ps.TableBag(4)})
            self.again = self.ids

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            vectors: torch.Tensor = self.ids(ids)
            return vectors.sum() * 2

    model = Net()
    compiled = torch.compile(model, backend="eager")
    for one in (model, compiled):
        assert list(named_tables(one)) == ["ids", "user.table"]  # type: ignore[arg-type]
    assert model.ids.spec("ids").name == "ids"
    compiled(torch.tensor([3, 3])).backward()
    assert model.ids.get_extra_state()["keys"].tolist() == [3]
    assert list(model.parameters()) == []
    assert "1 rows in this process" in repr(model)


def test_many_passes_without_a_backward_pass_copy_no_row_each_time() -> None:
    """As an evaluation that forgot `no_grad`; then all of them have gradients."""
    table = ps.Table(2, ps.RowSGD(lr=1.0), seed=3)
    seen, places = [], set()
    for some in range(100):
        seen.append(table(torch.arange(3 * some, 3 * some + 4)))
        rows = table.window.rows
        assert rows is not None
        places.add(rows.values.ctypes.data)
    assert len(places) < 10
    before = table.to_embedding()[0].num_embeddings
    torch.stack(seen).sum().backward()
    now = table(torch.arange(301)).detach()
    began = ps.Table(2, seed=3)(torch.arange(301)).detach()
    assert before == 0
    assert torch.equal(now[1:3], began[1:3] - 1.0)
    assert torch.equal(now[3], began[3] - 2.0), "two passes looked it up"


# Without Numba

PROGRAM = """
import sys
import plesio as ps
assert "torch" not in sys.modules and "numba" not in sys.modules
sys.modules.update(numba=None, llvmlite=None)
import torch
table = ps.Table(4, ps.RowAdagrad())
print(table)
try:
    table(torch.tensor([1]))
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.thorough
def test_a_table_without_numba_says_what_to_install() -> None:
    child = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    shown, told = child.stdout.splitlines()
    assert shown.startswith("Table(4, RowAdagrad(")
    assert told in [f"tables need {one}, which is not installed: pip install {one}" for one in ("numba", "llvmlite")]
