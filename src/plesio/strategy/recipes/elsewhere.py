"""What other libraries and papers call the strategies, and what they have that is not here."""

from __future__ import annotations

import re

SAME = {
    "allreduce": "ddp distributeddataparallel dataparallel horovod mirroredstrategy multiworkermirroredstrategy",
    "sync_sgd": "sync syncsgd bsp bulksynchronous bulksynchronousparallel ssgd synchronous synchronoussgd",
    "first_of": "backupworkers ksync ksyncsgd",
    "async_sgd": "async asyncsgd asgd asynchronous downpour downpoursgd parameterserver parameterserverstrategy",
    "bounded_staleness": "ssp stalesynchronous stalesynchronousparallel",
    "buffered": "kasync kasyncsgd softsync",
    "local_sgd": "localsgd",
    "elastic_averaging": "easgd elasticaveragingsgd",
    "hogwild": "hogwild",
    "fedopt": "fedadagrad fedadam fedyogi",
}
OWN = {word: own for own, words in SAME.items() for word in words.split()}
ANSWERS = {"secure": "SecureSums", "privacy": "Privacy"}
SHARDED = (
    "fsdp fsdp2 fullyshardeddataparallel zero zero1 zero2 zero3 deepspeed megatron pipelineparallel tensorparallel"
)


def known_elsewhere(name: str, prefix: str = "") -> str:
    """What to take for the strategy that others call `name`; empty for a name that nobody has."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if plain in SHARDED.split():
        return (
            "plesio does not shard a model, each worker holds all of it; for a model that fits on one worker take "
            f"{prefix}allreduce, for one that does not torch.distributed.fsdp without plesio"
        )
    own = OWN.get(plain, "")
    return f"plesio calls it {prefix}{own}" if own else ""


def in_python(call: str) -> str:
    """The call of a recipe as tables and the command line write it, in Python.

    >>> in_python("local_sgd(every=0.5s)"), in_python("local_sgd(every 16 steps)"), in_python("fedavg(secure=3:0.5)")
    ('local_sgd(every=ps.Seconds(0.5))', 'local_sgd(every=16)', 'fedavg(secure=ps.SecureSums(3, 0.5))')
    """
    numbers = re.compile(r"\b(secure|privacy)=([\d.e:-]+)")
    call = numbers.sub(lambda one: f"{one[1]}=ps.{ANSWERS[one[1]]}({one[2].replace(':', ', ')})", call)
    call = re.sub(r"\bh=", "every=", call)  # its old name
    call = re.sub(r"\bevery[= ]([\d.]+) ?s\b", r"every=ps.Seconds(\1)", call)
    return re.sub(r"\bevery (\d+) steps", r"every=\1", call)
