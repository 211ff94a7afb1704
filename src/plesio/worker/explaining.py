"""What is added to errors of torch and Python that a training function meets: what the user cannot know."""

from __future__ import annotations

from torch import nn

from plesio.errors import ConfigurationError, PlesioError
from plesio.worker.data.loader import LeasedLoader
from plesio.worker.warn import listed

ALL_TAKEN = (
    "an epoch may hold no batch for a worker: others took all of them, or it was done before the run was resumed. Then next() "
    "of its iterator raises this at once; let a loop end each epoch: while True: for batch in loader: ..., and look at the data "
    "in the loader given to prepare"
)
EMPTY_PASS = (
    "(this worker's training loop was given nothing in its last pass: others had taken all, or the run was over. If the error "
    "comes of that: set names before the loop, as in loss = float('nan'), and divide by no count of 0)"
)
IN_LOCK_STEP = (
    "for that workers are a process group under strategies in lock step (sync_sgd, allreduce, local_sgd), where ps.run starts "
    "two or more as processes; not under others, in simulated runs, in replays and where workers join a run"
)
ONE_FORWARD = (
    "Under all-reduce, return tensors, or tuples, lists or dicts of them, from forward (no object of another class), use all "
    "parameters that the loss needs inside one forward pass of the prepared model (not a model.scale read outside of it), and "
    "call backward() before the next one (for two towers: one forward pass that computes both); or take a strategy that leaves "
    "this free, such as sync_sgd"
)
EXPLAINED: tuple[tuple[type[Exception], str, str], ...] = (
    # DistributedDataParallel: a parameter got a gradient after its bucket was reduced
    (RuntimeError, "mark a variable ready only once", f"\n{ONE_FORWARD}"),
    # a collective was called, and there is no group of processes
    (ValueError, "Default process group has not been initialized", f" In plesio, {IN_LOCK_STEP}"),
)
"""The class of an error, words of it, and what is added."""


def explain(error: Exception, loader: LeasedLoader | None, where: list[str]) -> None:
    """Add it. `loader`: whose iterators the loop has, one of which may have raised StopIteration; `where`: what capabilities say
    of where the loop was."""
    if isinstance(error, StopIteration) and loader is not None:
        error.args = (": ".join(filter(None, (str(error), ALL_TAKEN))),)
    elif loader is not None and loader.empty_pass and not isinstance(error, PlesioError):
        error.add_note(EMPTY_PASS)
    for kind, words, more in EXPLAINED:
        if isinstance(error, kind) and words in str(error):
            error.args = (f"{error}{more}",)
    for said in filter(None, where):
        error.add_note(said)


def refuse_synchronised(model: nn.Module) -> None:
    """Refuse SyncBatchNorm where there is no group of processes."""
    named = [name for name, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm)]
    if named:
        raise ConfigurationError(
            f"the model has SyncBatchNorm ({listed(named)}), which takes the statistics of all workers' batches; {IN_LOCK_STEP}. "
            "Take such a strategy, or BatchNorm (leave convert_sync_batchnorm out)"
        )
