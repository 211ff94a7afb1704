"""Bugs to plant: the test of the test. Each must be found by a few seeds, or the oracle is blind to it.

No code outside this room knows of any.
"""

from __future__ import annotations

from torture.bugs import delivery, order, phases, promises, rebirth, reborn_rows, rows
from torture.bugs.planting import BUGS, planted

__all__ = ["BUGS", "delivery", "order", "phases", "planted", "promises", "rebirth", "reborn_rows", "rows"]
