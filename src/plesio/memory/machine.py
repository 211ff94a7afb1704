"""The memory of a run that has a model: blocks that the workers map, and what the server does with them."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from plesio.capabilities import those_with
from plesio.core.events import Fold, Forget, Hold, Share, Show
from plesio.memory import saved
from plesio.memory.blocks import MEANS, Blocks
from plesio.memory.capabilities import kind_of_folder, those_of
from plesio.memory.capability import MemoryCapability as Able
from plesio.memory.folder import Folder, build_folder
from plesio.memory.momenta import keeps_momentum
from plesio.memory.port import Memory
from plesio.memory.saved import Kept
from plesio.memory.taking_over import take_over
from plesio.memory.worker_states import LeftStates, Once
from plesio.protocol.worker import Answer, Beginning, Contribution, GoOn
from plesio.strategy.answers import Codec
from plesio.system.memory import SharedBlock
from plesio.system.recovery_log import RecoveryLog
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import ALL_PARTS, Arena, Kind, Lies
from plesio.tensors.carrying import Carried
from plesio.tensors.checksum import HASH, weights_hash, window_checksum
from plesio.tensors.finite import are_finite
from plesio.tensors.packing import Packing
from plesio.transport.doorbell import Located

EVALUATOR, ENGINE, READERS = -1, -2, -3
"""Readers that are no workers."""


class Machine(Memory):
    """Does in `blocks` what the sequencer decides; `in_one_process`: workers run here, from one request to the next.
    `log`: what another process goes on from when this one dies. Those `beside` are told of what it does, before its own."""

    def __init__(
        self,
        blocks: Blocks,
        in_one_process: bool = False,
        log: RecoveryLog | None = None,
        beside: Sequence[Able] = (),
    ) -> None:
        self.blocks, self.log = blocks, log
        self.once: Once = log.once if log is not None else operator.call
        self.note = blocks.note
        if blocks.held is not None:
            self.states = LeftStates(blocks.held, blocks, in_one_process, self.once)
        self.rows, self.own, self._able = those_of(blocks, in_one_process, log, self.once, beside)
        able = self._able  # asked now who has to do with what
        self._actions = [actions for one in able if (actions := one.actions)]
        self._told, self._joins = those_with(able, Able.told), those_with(able, Able.joins)
        self._folding, self._answering = those_with(able, Able.folding), those_with(able, Able.answering)
        self._checksums = those_with(able, Able.take_checksum)
        self._count_bytes()
        self._parts = [ALL_PARTS] * blocks.seats  # that it was of
        self._one_by_one = blocks.layout.parts > 1 or any(one.sizes_differ for one in able)
        self._final: int | None = None
        self._folder: Folder | None = None

    def _count_bytes(self) -> None:
        strategy = self.blocks.strategy
        words = {part: nbytes for one in self._able for part, nbytes in one.words.items()}
        self.push_bytes = self._bytes_by(strategy.send.codec) | words
        self.answer_bytes = self._bytes_by(strategy.adopt.codec) | words

    def _bytes_by(self, codec: Codec | None) -> dict[int, int]:
        """By part of the model."""
        layout = self.blocks.layout
        of = Packing(layout, codec).nbytes if codec is not None else layout.payload_bytes
        return {part: of(part) for part in (ALL_PARTS, *range(layout.parts))}

    @property
    def plain_bytes(self) -> int:
        return 0 if self.bytes_beside else self.blocks.layout.payload_bytes()

    @property
    def bytes_beside(self) -> int:
        beside = self._folder.bytes_beside if self._folder is not None else 0
        return beside + sum(one.nbytes for one in self._able)

    @property
    def shared_bytes(self) -> int:
        return self.blocks.shared_bytes + sum(one.shared_bytes for one in self._able)

    @property
    def folder(self) -> Folder:
        assert self._folder is not None, "training has begun"
        return self._folder

    @property
    def current(self) -> Arena:
        """The global parameters as the last fold left them; the next one writes there. Where they are the workers', as they were
        seen last."""
        return self.folded if self.own is None else self.own.parameters

    @property
    def folded(self) -> Arena:
        """What the last fold made: the parameters, or the mean that workers step by."""
        return self.blocks.versions.buffers[self.blocks.versions.current]

    # Beginning

    def take_news(self) -> str:
        return next((news for one in self._able if (news := one.take_news())), "")

    def begin(self, version: int, carry: bool = True) -> None:
        """As the port has it; `carry`: with the state that the user's optimizer brings."""
        blocks = self.blocks
        if blocks.folds:
            blocks.warm_up(self._built)
            self._take(self._built())
            if carry and blocks.carried is not None:
                self.folder.begin_from(blocks.carried, blocks.ring[1:])
        for buffer in (*blocks.versions.buffers[1:], *blocks.ring[MEANS : MEANS + blocks.gives_back_mean]):
            buffer.copy_from(blocks.ring[0])
        for one in self._able:
            one.begun(blocks, version)
        if advice := self._advice():
            warnings.warn(advice, RuntimeWarning, stacklevel=2)

    def lay_out_anew(self) -> Folder:
        """State for the strategy that holds in the blocks by now, with no more in it than the version that is current."""
        self.laid_out += 1
        self._count_bytes()
        self._take(folder := self._built())
        return folder

    def _take(self, folder: Folder) -> None:
        """Fold with this one from now on. What nobody else here has to do with, it is asked for itself."""
        self._folder = folder
        if not self._folding and not any(Fold in actions for actions in self._actions):
            self.fold = folder.fold  # type: ignore[method-assign]
        if not self._one_by_one:
            if not any(Show in actions for actions in self._actions):
                self.show = folder.show  # type: ignore[method-assign]
            self.told = folder.told if not self._told else self.told  # type: ignore[method-assign]
            self.located = folder.located if self.own is None else self.located  # type: ignore[method-assign]

    def _built(self) -> Folder:
        blocks, strategy = self.blocks, self.blocks.strategy
        after = blocks.after_step if strategy.steps_at_server else None
        applied = Applied(after, blocks.model.specs) if after is not None else None
        return build_folder(
            strategy, blocks.specs, blocks.versions, blocks.slots, blocks.workers, blocks.new_arenas(), blocks.packed,
            self._threads(), applied, kind_of_folder(self.log, blocks, self.lost),
        )  # fmt: skip

    def _threads(self) -> int:
        """Those that share a fold: the cores that workers leave idle meanwhile, all of them in a round."""
        cores = len(os.sched_getaffinity(0))
        return cores if self.blocks.strategy.gather.in_rounds else max(1, cores - self.blocks.workers)

    def _advice(self) -> str:
        """What the user should know of the way this run folds; empty if it is as the strategy says."""
        strategy = self.blocks.strategy
        asked = strategy.adopt.looks_ahead and self.blocks.workers > 1  # one has nobody to look ahead to
        kept = [spec for spec in self.blocks.specs if keeps_momentum(spec.groups)]
        if not asked or not kept or self.folder.looks_ahead:
            return ""
        return (
            f"{kept[0].kind.__name__}: no look-ahead is known for it, so {strategy.name} folds it plainly, which "
            "can diverge with many workers; use SGD, Adam or AdamW, or correct='plain' to accept it"
        )

    # Training

    def joins(self, worker: int) -> None:
        self._parts[worker] = ALL_PARTS
        for joins in self._joins:
            joins(worker)

    def told(self, worker: int, made: Contribution) -> None:
        if self._one_by_one:
            part = self._parts[worker] = made.beside.part
            self.part_bytes += self.push_bytes[part]
        for told in self._told:
            told(worker, made)
        if self._folder is not None:
            self._folder.told(worker, made)

    def do(self, effect: Any) -> None:
        folder = self._folder
        if folder is None:  # the workers fold
            return
        kind: type = type(effect)
        for actions in self._actions:
            if kind in actions:
                actions[kind](self, effect)
        if kind is Show:
            folder.show(effect, self._parts[effect.worker])
        elif kind is Fold:
            for folding in self._folding:
                if (effect := folding(effect)) is None:
                    return
            folder.fold(effect)
        elif kind is Hold:
            folder.hold(effect.worker, effect.weight)
        elif kind is Forget:
            folder.forget(effect.worker)
        elif kind is Share:
            folder.share_among(effect.workers)

    def located(self, worker: int, answer: Answer) -> Located:
        if self.own is not None and isinstance(answer, Beginning):
            return Located(answer, MEANS)  # behind which the parameters lie
        if self._one_by_one and isinstance(answer, GoOn):
            answer.part = self._parts[worker]
            for answering in self._answering:
                answering(worker, answer)
            self.part_bytes += self.answer_bytes[answer.part]
        return self._folder.located(worker, answer) if self._folder is not None else Located(answer, 0)

    def whole(self, answer: Answer) -> Located:
        """An answer to anybody, with the place of the current version itself."""
        return Located(answer, next(at for at, one in enumerate(self.blocks.ring) if one is self.current))

    # What others may see

    def checksum(self, version: int) -> int:
        window: int = self.once(lambda: window_checksum(self.folded.bytes, version))
        for take in self._checksums:
            window = (window + take()) % HASH
        return window

    def digest(self) -> str:
        weights: str = self.once(lambda: weights_hash(self.current.memory))
        return " ".join([weights, *(f"{checksum():016x}" for checksum in those_with(self._able, Able.checksum))])

    def not_finite(self) -> str:
        name: str = self.once(self._not_finite)
        return name

    def _not_finite(self) -> str:
        parameters = self.current if self._final is None else self.blocks.ring[self._final]
        if are_finite(parameters.of_kind(*(kind for kind in Kind if kind.moves))):
            return ""
        named = zip(parameters.layout.specs, parameters.views, strict=True)
        return next(spec.name for spec, view in named if spec.kind.moves and not are_finite([view]))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The parameters by the model's names, each with memory of its own."""
        return saved.weights(self.blocks, self.current)

    def view(self, reader: int, final: bool = False) -> Lies:
        """Where `reader` finds the parameters as they are, until it asks again. Where workers fold by themselves that is where
        they write."""
        blocks = self.blocks
        buffer = self._shown_whole(reader) if blocks.folds else 0
        self._final = buffer if final else None
        return blocks.lies(buffer)

    def _shown_whole(self, reader: int) -> int:
        if self.own is None:
            return self.folder.snapshot(reader)
        if reader == ENGINE:
            return MEANS
        place = len(self.blocks.ring) - 1 - (reader == EVALUATOR and self.blocks.reads)
        self.once(partial(self.blocks.ring[place].copy_from, self.current))  # it reads while others are looked at
        return place

    def state_for(self, worker: int) -> tuple[Carried, SharedBlock]:
        """The state of the optimizer that steps at the server, as `worker` would hold it; the block holds what the keys name."""
        carried = self.folder.carried()
        block, arenas = self.blocks.lent(len(carried.keys), "the optimizer's state")
        self.folder.copy_state(worker, carried, arenas)
        return carried, block

    # Checkpoints

    def kept(self) -> Kept:
        kept = saved.kept(self.blocks, self.current, self.folder.kept())
        return kept._replace(numbers=kept.numbers | self._beside())

    def _beside(self) -> dict[str, Any]:
        """The numbers that are not the folder's."""
        return {name: value for one in self._able for name, value in one.numbers().items()}

    def restore(self, kept: Kept, name: str, version: int) -> Mapping[int, bytes]:
        saved.load_weights(self.blocks, kept, name)
        self._count_bytes()
        self.begin(version, carry=False)
        own = kept.own
        if kept.was is not None:
            own = take_over(self.blocks, self.folder, kept.was, kept)
        else:
            beside = self._beside()
            numbers = {part: value for part, value in kept.numbers.items() if part not in beside}
            saved.load_state(self.folder, kept._replace(numbers=numbers), name)
        for one in self._able:
            one.go_on(kept)
        return own

    def begin_anew(self) -> None:
        self.folder.begin_anew()
        for one in self._able:
            one.begin_anew()

    @property
    def lost(self) -> str:
        """Why nobody could go on from what this process leaves, though it was made for that; empty if somebody could."""
        return self._folder.lost if self._folder is not None else ""
