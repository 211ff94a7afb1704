"""The rules of who is head (`plesio.core.headship`) where hosts die, processes freeze, and links are cut, all simulated."""

from torture.heads.world import BROKEN, Outcome, Parts, run

__all__ = ["BROKEN", "Outcome", "Parts", "run"]
