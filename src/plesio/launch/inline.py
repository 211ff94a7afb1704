"""The run's memory when everybody is in one process: laid out when the first worker shows its model."""

from __future__ import annotations

from weakref import WeakSet

import msgspec
import torch
from torch import nn

from plesio.core.events import Fold
from plesio.errors import ConfigurationError
from plesio.launch.greenlets import GreenletWorker, Place
from plesio.protocol.worker import Hello, Settings
from plesio.server.assembly import Assembly
from plesio.strategy import Strategy
from plesio.tensors.arena import Arena
from plesio.tensors.model import load_structure
from plesio.transport.memory import check_room


class InlineServer:
    """What a server process holds, without the process: versions, slots, and what folds (which is this object's face).

    Raises:
        ModelMismatchError: from `seat`, for a worker that does not hold the first one's model.
        ConfigurationError: the same, for another optimizer, or a model that another worker holds.
        SharedMemoryError: the same, for the first one: there is too little memory.
    """

    def __init__(self, strategy: Strategy, workers: int) -> None:
        self._strategy = strategy
        self._workers = workers
        self._first: Hello | None = None
        self._assembly: Assembly | None = None
        self._judged: tuple[Arena, nn.Module] | None = None
        self._held: dict[int, WeakSet[nn.Module]] = {}  # by worker

    @property
    def begun(self) -> bool:
        """Whether anybody was seated."""
        return self._assembly is not None

    @property
    def built(self) -> Assembly:
        """The memory."""
        assert self._assembly is not None, "a worker was seated"
        return self._assembly

    @property
    def payload_bytes(self) -> int:
        """What an exchange carries each way."""
        return self.built.layout.payload_bytes

    @property
    def state_dict(self) -> dict[str, torch.Tensor]:
        """A copy of the current weights under their PyTorch names."""
        kept = [view.clone() for view in self.built.current.views]
        return {name: kept[index] for name, index in self.built.model.names}

    def seat(self, worker: GreenletWorker) -> bool:
        """Bring a worker up to where training can begin; False if its function ended before it took part."""
        hello = worker.resume()
        if not isinstance(hello, Hello):
            return False
        self._check_own(worker)
        first = self._first is None
        if self._first is None:
            self._first = hello
            self._assembly = Assembly(self._strategy, self._workers, [hello], evaluates=False)
            self._check_room(self._assembly)
        else:
            self.built.check(hello)
        built = self.built
        worker.resume(Place(built.layout, built.ring, built.slots[worker.rank], first))
        if first:
            built.build_folder()
        return True

    def _check_own(self, worker: GreenletWorker) -> None:
        """Two workers over one model would each move it into memory of their own."""
        assert worker.model is not None, "it introduced itself"
        own = WeakSet(module for module in worker.model.modules() if _moves(module))
        self._held.pop(worker.rank, None)  # an earlier incarnation's
        for module in own:
            if any(module in others for others in self._held.values()):
                raise ConfigurationError(
                    f"worker {worker.rank} gave prepare a {type(module).__name__} that another worker of this run holds: "
                    "simulated and replayed workers are all in this process and share the script's globals; make the model "
                    "and the optimizer in the training function"
                )
        self._held[worker.rank] = own

    def close(self) -> None:
        """The run is over: its memory goes now, and with it the descriptors, not when somebody looks for cycles."""
        self._assembly = self._first = self._judged = None

    def _check_room(self, built: Assembly) -> None:
        """Workers in processes may read a version where it lies; here each has a copy beside what the assembly counts."""
        copies = built.layout.nbytes * self._workers
        what = f"with a copy of the model for each of the {self._workers} workers of this process, training"
        check_room(built.shared_bytes + copies, what)  # none of it is touched yet

    def model(self) -> nn.Module:
        """A copy of the model with the current weights, to be judged."""
        if self._judged is None:
            assert self._first is not None and self._first.structure, "asked for when the workers were made"
            own = Arena.private(self.built.layout)
            self._judged = own, load_structure(self._first.structure, own.layout.specs, own.views)
        own, model = self._judged
        own.copy_from(self.built.current)
        return model

    # What folds

    def set_groups(self, worker: int, settings: tuple[Settings, ...]) -> None:
        """Hyper-parameters as they came with a contribution."""
        for one in settings:
            self.built.folder.set_groups(worker, msgspec.msgpack.decode(one.groups))

    def hold(self, worker: int, weight: float) -> None:
        """As `plesio.tensors.folding.Folder`, like the rest."""
        self.built.folder.hold(worker, weight)

    def fold(self, fold: Fold) -> None:
        """Make a version."""
        self.built.folder.fold(fold)

    def publish(self, reader: int) -> int:
        """Pin the buffer that `reader` goes on from."""
        return self.built.folder.publish(reader) if self.begun else 0  # to one that took no part

    def forget(self, worker: int) -> None:
        """`worker` is gone."""
        if self._assembly is not None:
            self._assembly.forget(worker)


def _moves(module: nn.Module) -> bool:
    """Whether training changes what it holds itself; a frozen module may be everybody's."""
    return bool(module._buffers) or any(one.requires_grad for one in module.parameters(recurse=False))
