"""`worker.island`: the processes that are one worker together, and what each of them does.

Its ranks train one copy of the model, split or repeated among them as torch does it (FSDP2, DistributedDataParallel, tensor
parallelism). To the run they are one worker: one contribution, one part of the data, one death.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from plesio.errors import ConfigurationError
from plesio.transport.island_group import IslandGroup
from plesio.worker.state import WorkerState

DATA = "dp"
"""The dimensions of a mesh over which batches are split have names that begin so."""


class Island:
    """Where this process is among those of its worker.

    A worker that is one process has an island of one rank, so a loop can be written once for both.

    Attributes:
        rank: this process's number in the island, from 0.
        ranks: how many processes the island has.
        local_rank: its number among all processes of the run on this host.

    >>> def train(worker):
    ...     print(worker.island.rank, worker.island.ranks, worker.island.parts)
    ...     model = torch.nn.Linear(2, 1)
    ...     model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ...     model(torch.ones(4, 2)).square().mean().backward()
    ...     optimizer.step()
    >>> run = ps.run(train, "sync_sgd", workers=1, engine=ps.Simulated("uniform"))
    0 1 (0, 1)
    """

    def __init__(
        self, state: WorkerState, rank: int = 0, ranks: int = 1, local_rank: int = 0, group: IslandGroup | None = None
    ) -> None:
        self.rank, self.ranks, self.local_rank = rank, ranks, local_rank
        self.group = group
        self._state = state
        self.parts = rank, ranks

    @property
    def parts(self) -> tuple[int, int]:
        """Which slice of each batch this rank takes, of how many: (rank, ranks) unless it is set before the first batch.

        Where ranks split the model within a layer (tensor parallelism), those that compute on one batch together have the same
        part: `mesh_of` sets it.

        Raises:
            ConfigurationError: set to what is no part, or to a number of parts that does not divide the ranks.
        """
        return self._state.parts

    @parts.setter
    def parts(self, parts: tuple[int, int]) -> None:
        part, of = parts
        if not (1 <= of <= self.ranks and self.ranks % of == 0 and 0 <= part < of):
            raise ConfigurationError(
                f"worker.island.parts = {parts}: (part, number of parts), where that number divides the island's {self.ranks} "
                "ranks, and parts count from 0"
            )
        self._state.parts = part, of

    @property
    def device(self) -> torch.device:
        """The device that this rank should take: a GPU of this host by its `local_rank`, else the CPU."""
        gpus = torch.cuda.device_count()
        return torch.device("cuda", self.local_rank % gpus) if gpus else torch.device("cpu")

    @property
    def told_to_leave(self) -> bool:
        """Whether this rank was told that it is to leave the run, and the others may not know."""
        return self._state.told

    def leave(self) -> None:
        """All ranks know that the worker is to leave, once this step is made."""
        self._state.leaving = True

    def all_have(self, more: bool) -> bool:
        """Whether every rank has `more`; all of them ask."""
        return more if self.group is None else self.group.total([more])[0] == self.ranks

    @cached_property
    def mesh(self) -> DeviceMesh:
        """All ranks of the island in one row, named "dp": for `fully_shard(model, mesh=worker.island.mesh)`."""
        return self._mesh((self.ranks,), (DATA,))

    def mesh_of(self, **sizes: int) -> DeviceMesh:
        """A mesh with these named dimensions: `mesh_of(dp=2, tp=2)`. Batches are split over those that begin with "dp".

        Raises:
            ConfigurationError: the sizes do not make up the island's ranks.
        """
        if prod(sizes.values()) != self.ranks:
            asked = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ConfigurationError(
                f"mesh_of({asked}): these make {prod(sizes.values())} ranks, the island has {self.ranks}"
            )
        mesh = self._mesh(tuple(sizes.values()), tuple(sizes))
        part, of = 0, 1
        for (name, size), at in zip(sizes.items(), mesh.get_coordinate() or (), strict=True):
            if name.startswith(DATA):
                part, of = part * size + at, of * size
        self.parts = part, of
        return mesh

    def _mesh(self, sizes: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        kind = self.device.type
        if kind == "cuda":  # FSDP2 takes the current device, and torch would set it by the rank in the island
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():  # a lone process: it is the group
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        if dist.get_world_size() == self.ranks:
            return init_device_mesh(kind, sizes, mesh_dim_names=names)
        own = dist.new_group([dist.get_rank()], use_local_synchronization=True)  # the others are other workers
        return DeviceMesh.from_group(own, kind, mesh_dim_names=names)
