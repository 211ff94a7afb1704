"""The whole interface of a run's memory. It takes the sequencer's effects in their order, and gives answers.

| effect          | what the memory does                                                               |
| --------------- | ---------------------------------------------------------------------------------- |
| Hold            | adds what lies in a worker's slot to the buffer; the slot is free                  |
| Fold            | makes the next version of what was held, or lies in the members' slots             |
| Show            | a worker reads the version from now on; where it lies goes with the next answer    |
| Forget          | a worker reads nothing any more                                                    |
| Serve, FoldRows | what `plesio.memory.row_tables` says of tables                                     |
| Share           | learning rates are shared among another number of workers                         |
| Switch          | goes on under the strategy of another phase, with the state that this one has too  |

Beside these it is told what came with a contribution (`told`), before the sequencer hears of that. Nobody else at the server
knows where tensors lie: a place travels in an answer, a welcome or a view, to whoever maps the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from plesio.core.events import Effect, Fold, Show
from plesio.memory.own_weights import OwnWeights
from plesio.memory.row_servers import RowServers
from plesio.memory.saved import Kept
from plesio.memory.worker_states import WorkerStates
from plesio.protocol.worker import Answer, Contribution
from plesio.tensors.arena import ALL_PARTS
from plesio.transport.doorbell import Located


class Memory:
    """A memory without tensors: before there is a model, where the workers fold, and in runs that ask for the time only."""

    note = ""
    """What the record of the run should say of it."""
    part_bytes = 0
    """What travelled so far, where a model is exchanged in parts."""
    elsewhere: Set[int] = frozenset()
    """The workers of which nothing that they hold can be had."""
    dropped = ""
    """What state did not go on at the last `Switch`, in words."""
    laid_out = 0
    """How often its state was laid out anew, in memory that a process forked before does not see."""
    rows: RowServers | None = None
    """The rows of tables, if the model has any."""
    own: OwnWeights | None = None
    """When the parameters are whole here, if they are the workers' own."""
    states = WorkerStates()
    """What workers hold of their own."""
    push_bytes: Mapping[int, int] = {ALL_PARTS: 0}
    """What a contribution takes, by its part of the model, without the rows of tables."""
    answer_bytes: Mapping[int, int] = {ALL_PARTS: 0}
    """What an answer to that takes."""

    def begin(self, version: int) -> None:
        """Training begins from the weights that the first worker handed over, as `version`."""

    def joins(self, worker: int) -> None:
        """A process is about to be a member, as `worker`."""

    def told(self, worker: int, made: Contribution) -> None:
        """A contribution lies in `worker`'s slot: what came with it."""

    def take_news(self) -> str:
        """What people should know, and nobody took yet; empty if there is nothing more."""
        return ""

    def do(self, effect: Effect) -> None:
        """Carry out an effect.

        Raises:
            ConfigurationError: what was contributed cannot be folded together.
        """

    def fold(self, fold: Fold) -> None:
        """Carry out this one, as `do`: of what is done most often a call less."""
        self.do(fold)

    def show(self, show: Show) -> None:
        """Likewise."""
        self.do(show)

    def located(self, worker: int, answer: Answer) -> Located:
        """An answer to `worker`, with the place of what it was shown last."""
        return Located(answer, 0)

    def checksum(self, version: int) -> int:
        """That of a part of what the last fold made, which was `version`."""
        return 0

    def digest(self) -> str:
        """That of all parameters."""
        return ""

    def not_finite(self) -> str:
        """The first tensor of the parameters that holds a NaN or an infinity; empty if none does."""
        return ""

    @property
    def plain_bytes(self) -> int:
        """What either would take unpacked."""
        return 0

    @property
    def bytes_beside(self) -> int:
        """What travelled beside the model: rows of tables."""
        return 0

    @property
    def shared_bytes(self) -> int:
        """How much of it is shared with the workers."""
        return 0

    # Checkpoints

    def kept(self) -> Kept:
        """What a checkpoint keeps, but for the rows of tables; what waits to be folded is computed again."""
        raise NotImplementedError

    def restore(self, kept: Kept, name: str, version: int) -> Mapping[int, bytes]:
        """Begin from what a checkpoint called `name` kept; what each worker begins with.

        Raises:
            CheckpointError: it is of another model or optimizer.
        """
        raise NotImplementedError

    def begin_anew(self) -> None:
        """As after a restore: nothing waits to be folded."""
