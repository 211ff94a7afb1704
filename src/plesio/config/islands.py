"""Which strategies take workers that are several processes each (`ranks=`)."""

from __future__ import annotations

from plesio.strategy import Strategy

ISLANDS_UNDER = "take sync_sgd, async_sgd, local_sgd, async_local_sgd or diloco, or leave ranks out"


def no_islands(strategy: Strategy) -> str:
    """Why a worker cannot be several processes under `strategy`; nothing if it can.

    >>> no_islands(ps.diloco())
    ''
    >>> no_islands(ps.hogwild())
    'workers fold without a server'
    """
    every, send, adopt = strategy.every, strategy.send, strategy.adopt
    reasons = {
        "the strategy has phases": bool(strategy.plan),
        "workers fold without a server": not strategy.via.at_server or strategy.outer.in_worker,
        "a client is trained by one process": every.by_client,
        "each process would end its local steps by its own clock": every.timed and not every.paced,
        "local steps are held by a leash, which is of whole tensors": every.proximal > 0,
        "each process would notice by itself that its step was called off": strategy.release.cancel_late,
        "a worker goes on while its answer travels": strategy.goes_on(away=False),
        "parameters are blended": adopt.blends,
        "the model is exchanged in fragments": send.fragments > 1,
        "what is sent is packed": send.codec is not None or adopt.codec is not None,
    }
    return next((why for why, holds in reasons.items() if holds), "")
