"""The head's end of secure sums (`plesio.secure_sums`): it adds up what sites masked, takes the masks off when it can, and lays
out what each site is told.

To the sequencer a phase is an exchange without steps: all come, nobody is folded, all go on. Steps come with what opens the sum,
and so the fold. What a site is told lies in its slot, where nothing else lies while it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
from msgspec.structs import replace

from plesio.core.events import Fold, Forget
from plesio.errors import ConfigurationError
from plesio.memory.blocks import Blocks
from plesio.memory.capability import Action, MemoryCapability, ModelMemory
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.protocol.payloads import WORDS, put_words
from plesio.protocol.worker import Contribution, GoOn
from plesio.secure_sums.head import SecureHead
from plesio.secure_sums.noise import SiteNoise
from plesio.secure_sums.numbers import to_numbers, trained
from plesio.secure_sums.words import MASKING, SITE_BYTES, Masked, RoundOpened, Said, Told
from plesio.tensors.arena import ALL_PARTS, Kind

decode: Callable[[bytes], Said] = decoder_of(Said)


class MaskedSums(MemoryCapability):
    """Of what lies in the slots of `blocks`; under privacy the sites add noise."""

    sizes_differ = True

    def __init__(self, blocks: Blocks) -> None:
        secure, privacy, slots = blocks.strategy.send.secure, blocks.strategy.send.privacy, blocks.slots
        assert secure is not None, "else it is not loaded"
        self.words = {WORDS: SITE_BYTES * blocks.seats}
        self._slots = slots
        self._limit = secure.clip if privacy is None else SiteNoise(secure, privacy).limit
        self._head = SecureHead(secure)
        self._sum = np.zeros_like(trained(slots[0]).view(np.uint32))
        self._news: deque[str] = deque()
        self._gave_up = ""  # why that was, the last time
        self.begin_anew()

    @property
    def actions(self) -> Mapping[type, Action]:
        return {Forget: self._forget}

    def begin_anew(self) -> None:
        """Nobody is in a round."""
        self._head.begin()
        self._told: Mapping[int, Told] = {}
        self._open = False  # somebody has spoken, and was not answered
        self._sum.fill(0)

    def _forget(self, memory: ModelMemory, forget: Forget) -> None:
        """A process is gone: another one may come to its seat, with a key of its own."""
        self._head.lives.pop(forget.worker, None)

    def told(self, worker: int, made: Contribution) -> None:
        """A contribution, whose words it takes; `ProtocolError`: its worker may not say that."""
        said = decode(bytes(made.attachments.pop(MASKING, b"")))
        if made.steps and not isinstance(said, RoundOpened):
            raise ProtocolError(f"worker {worker} sent steps with {type(said).__name__}")
        counts, self._open = self._head.hear(worker, said), True
        if counts and isinstance(said, Masked):
            np.add(self._sum, trained(self._slots[worker]).view(np.uint32), out=self._sum)

    def folding(self, fold: Fold) -> Fold | None:
        """The fold of the sum alone, which lies in the slot of its first member; None: it cannot be known."""
        self._open, self._told = False, {}
        share, first = self._head.share, fold.members[0]
        why = self._head.unmask(self._sum)
        if why:
            self._give_up(f"{why}; version {fold.version} is the one before")
        else:
            to_numbers(self._sum, self._limit, share, trained(self._slots[first.worker]))
        self._sum.fill(0)
        return None if why else replace(fold, members=(replace(first, share=1.0),))

    def answering(self, worker: int, answer: GoOn) -> None:
        """With it go words, which are laid into the worker's slot, or the version."""
        if self._open:
            self._open, self._told = False, self._head.close()
            if why := self._head.why:
                self._give_up(why)
                self._sum.fill(0)
        answer.part = ALL_PARTS
        if (told := self._told.get(worker)) is not None:
            put_words(self._slots[worker].bytes, encode(told))
            answer.part = WORDS

    def _give_up(self, why: str) -> None:
        if why != self._gave_up:  # else people know
            self._gave_up = why
            self._news.append(f"a secure sum was given up, and nothing of it is known: {why}")

    def take_news(self) -> str:
        """A round that came to nothing, and why, or a site that is left out; empty if there was no more."""
        news = self._head.suspects.news or self._news
        return news.popleft() if news else ""


def check(blocks: Blocks) -> None:
    """`ConfigurationError`: what workers would send of this model cannot be masked."""
    masked = {Kind.TRAINED: "float32"}
    others = [
        one.name for one in blocks.model.specs if one.kind is not Kind.FROZEN and masked.get(one.kind) != one.dtype
    ]
    if names := [*others, *blocks.tables]:
        raise ConfigurationError(
            f"secure=: masks are for parameters of float32, and {', '.join(names[:3])} would be sent as they are; use layers "
            "without running statistics (GroupNorm in place of BatchNorm), in float32, and no tables"
        )
    if (words := SITE_BYTES * blocks.seats) > blocks.layout.nbytes:
        raise ConfigurationError(
            f"secure=: words of {blocks.seats} sites take {words} bytes, and must fit where the model does, in "
            f"{blocks.layout.nbytes}; take fewer sites, or a larger model"
        )


MemoryHalf = MaskedSums
