"""How a process takes part that may be one of several, which are one worker."""

from __future__ import annotations

from plesio.launch.participation import Participation
from plesio.transport.island_group import IslandGroup
from plesio.worker.island import Island
from plesio.worker.own_process import OwnProcess


class GatheringContext(Participation):
    """What the contexts of processes have in common."""

    @property
    def island(self) -> Island:
        """The processes that this worker is made of."""
        return self.process.island

    @property
    def group_terms(self) -> tuple[str, float, float | None]:
        """Those of `OwnProcess.terms`."""
        return self.process.terms(self._timeout_s)

    def gather(self, group: IslandGroup, local_rank: int) -> None:
        """This process is a rank of an island, whose ranks agree by `group`."""
        island = Island(self.state, group.rank, group.ranks, local_rank, group)
        self.process = OwnProcess(island, self.state, self._strategy)
        if self._strategy.every.among_ranks:  # workers that all-reduce among themselves are numbered by their ranks
            self.number, self.workers = group.rank, group.ranks
            self.state.together = group.ranks
