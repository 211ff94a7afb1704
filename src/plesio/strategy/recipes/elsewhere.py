"""What other libraries and papers call the strategies, and what they have that is not here."""

from __future__ import annotations

import re
from collections.abc import Iterable

SAME = {
    "allreduce": "ddp distributeddataparallel dataparallel horovod ringallreduce mirroredstrategy "
    "multiworkermirroredstrategy",
    "sync_sgd": "bsp bulksynchronous bulksynchronousparallel ssgd synchronous synchronoussgd",
    "first_of": "backupworkers ksync ksyncsgd",
    "async_sgd": "asgd asynchronous asynchronoussgd downpour downpoursgd parameterserver parameterserverstrategy",
    "async_sgd(correct='delay_compensated')": "dcasgd",
    "bounded_staleness": "ssp stalesynchronous stalesynchronousparallel",
    "buffered": "kasync kasyncsgd softsync",
    "elastic_averaging": "easgd elasticaveragingsgd",
    "fedopt": "fedadam",
    "fedopt('yogi')": "fedyogi",
    "fedopt('adagrad')": "fedadagrad",
}
SHARDED = (
    "fsdp fsdp2 fullyshardeddataparallel zero zero1 zero2 zero3 deepspeed megatron pipelineparallel tensorparallel"
)


def known_elsewhere(name: str, own: Iterable[str], prefix: str = "") -> str:
    """What to take for the strategy that others call `name`; empty for a name that nobody has.

    >>> known_elsewhere("DDP", ["allreduce"])
    'plesio calls it allreduce'
    """
    plain = _plain(name)
    if plain in SHARDED.split():
        return (
            "plesio does not shard a model, each worker holds all of it; for a model that fits on one worker take "
            f"{prefix}allreduce, for one that does not torch.distributed.fsdp without plesio"
        )
    same = {_plain(one): one for one in own} | {one: ours for ours, names in SAME.items() for one in names.split()}
    return f"plesio calls it {prefix}{same[plain]}" if plain in same else ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
