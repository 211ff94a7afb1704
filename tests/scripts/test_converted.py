"""Scripts as people have them: a few changed lines, and what PyTorch computes."""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import plesio as ps
from support.long_forms import but_slow

FOLDER = Path(__file__).parents[2] / "examples" / "converted"
NAMES = sorted(one.stem for one in FOLDER.glob("*.py") if not one.stem.startswith("plain_"))
TORCHS = ps.allreduce("torch")
MODES: list[Any] = ["async_sgd", ps.local_sgd(4), TORCHS]
MODES += [
    pytest.param(one, marks=pytest.mark.slow) for one in ("buffered", ps.diloco(4, codec="int8"))
]  # sync_sgd is below
SHAPES = {
    "cnn", "contrastive", "graph_net", "module_level", "sines", "trainer_class", "until_solved", "word_lm",
}  # fmt: skip
"""Those of public scripts; the others have the habits in between."""
HABITS = [name for name in NAMES if name not in SHAPES]
LINES = dict.fromkeys(["actor_critic", "contrastive", "gan", "graph_net", "resnet", "trainer_class"], 6)
LINES |= {"word_lm": 7, "module_level": 12}
"""How many lines are changed, where they are more than five; those that are only indented do not count."""
NOT_ONE_MODULE = {"gan", "module_level", "recommender"}
"""Several modules or optimizers: allreduce refuses them."""

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path) -> Iterator[None]:
    """Scripts write their checkpoints where they are."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield
    os.chdir(before)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(worker: ps.Worker, name: str, **settings: Any) -> None:
    module = script(name)
    vars(module).update(settings)
    module.train(worker)


def plain(name: str, **settings: Any) -> dict[str, torch.Tensor]:
    module = script(f"plain_{name}")
    vars(module).update(settings)
    model = module.main() if hasattr(module, "main") else torch.nn.ModuleList([module.generator, module.critic])
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


def run_of(name: str, strategy: Any, workers: int, settings: dict[str, Any] | None = None, **options: Any) -> ps.Run:
    return ps.run(partial(train, name=name, **(settings or {})), strategy, workers=workers, **options)


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_are_changed(name: str) -> None:
    texts = ((FOLDER / f"{one}.py").read_text() for one in (f"plain_{name}", name))
    before, after = ([line.strip() for line in text.splitlines()] for text in texts)
    changed = [line for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
    assert len(changed) <= LINES.get(name, 5), changed


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_one_worker_computes_what_torch_computes(name: str) -> None:
    strategy = "local_sgd" if name == "sines" else "sync_sgd"  # L-BFGS evaluates the loss several times a step
    wanted, run = plain(name), run_of(name, strategy, 1)
    assert run.state_dict.keys() == wanted.keys()
    for key, value in run.state_dict.items():
        assert torch.equal(value, wanted[key]), key


@pytest.mark.thorough
def test_two_workers_in_lock_step_compute_the_doubled_batch() -> None:
    """The GAN's loader is shuffled by a generator of its own; the others draw something else with another batch."""
    wanted = plain("gan", BATCH=16)
    for key, value in run_of("gan", "sync_sgd", 2, {"BATCH": 8}).state_dict.items():
        assert torch.allclose(value, wanted[key], atol=1e-5), key


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", MODES, ids=str)
@pytest.mark.parametrize("name", HABITS)
def test_every_mode_trains_it(name: str, strategy: Any) -> None:
    if strategy is TORCHS and name in NOT_ONE_MODULE:
        with pytest.raises(ps.ConfigurationError, match="one module, for one optimizer"):
            run_of(name, strategy, 2)
        return
    run = run_of(name, strategy, 2)
    assert run.steps > 0
    assert run.batches_unvisited <= 2, "what is accumulated when the data ends makes no step"
    assert all(bool(value.isfinite().all()) for value in run.state_dict.values())


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", ["async_sgd", pytest.param(ps.local_sgd(4), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", but_slow([*HABITS, "trainer_class"], {"trainer_class", "recommender"}))
def test_an_asynchronous_run_replays_bit_for_bit(name: str, strategy: Any, tmp_path: Path) -> None:
    run = run_of(name, strategy, 2, runs=tmp_path)
    assert run.folder is not None
    assert ps.replay(run.folder, partial(train, name=name)).identical


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_slow([*HABITS, "contrastive"], {"gan", "contrastive"}))
def test_the_simulator_computes_what_processes_do_in_lock_step(name: str) -> None:
    real, simulated = run_of(name, "sync_sgd", 2), run_of(name, "sync_sgd", 2, engine=ps.Simulated("uniform"))
    for key, value in real.state_dict.items():
        assert torch.equal(value, simulated.state_dict[key]), key


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_slow(HABITS, {"resnet", "gan"}))
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    """It is stopped when its first epoch, or as many of its own steps, are done."""
    whole = run_of(name, "sync_sgd", 2)
    half = whole.version // 2
    stopped = run_of(
        name,
        "sync_sgd",
        2,
        engine=ps.Simulated("uniform"),
        runs=tmp_path,
        checkpoint=ps.Checkpoint(),
        until=ps.Until(steps=2 * half),
    )
    assert stopped.folder is not None
    rest = run_of(name, "sync_sgd", 2, resume=stopped.folder)
    assert stopped.version < whole.version == rest.version
    for key, value in rest.state_dict.items():
        assert torch.equal(value, whole.state_dict[key]), key
