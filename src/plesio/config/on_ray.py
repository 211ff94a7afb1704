"""`ps.Ray(...)`: the place of a run that is on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from plesio.config.engine import Engine
from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import NUMBER

PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray(Engine):
    """Where a run is to take place: on the Ray cluster that this program is connected with, or on one of this host.

    Ray gives each worker its place and replaces it when it dies. Of an island (`ranks=`) that is each rank, and all of them
    when one dies. Needs `pip install 'plesio[ray]'`.

    Args:
        resources: what each worker takes, by Ray's names; of an island, each of its ranks.
        placement: "PACK" puts workers on few hosts, "SPREAD" on many; STRICT_ before it insists on that.
        insecure: talk between hosts in the clear; else TLS is used, with certificates that are made for the run.

    >>> Ray(resources={"GPU": 1}, placement="SPREAD")
    Ray(resources={'GPU': 1}, placement='SPREAD', insecure=False)
    """

    elsewhere: ClassVar[bool] = True
    refuses: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("faults", "pace"), "is for processes of this host; on Ray, kill them yourself"),
        "readers": "is not for runs on Ray yet: have a worker share what it has",
        "threads": "is for processes of this host; Ray gives its workers theirs",
        "workers_max": (
            "is for processes of this host, and for ps.join; on Ray, its scaling_config says how many there are"
        ),
    }

    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1})
    placement: str = "PACK"
    insecure: bool = False

    def __post_init__(self) -> None:
        amounts = self.resources.values() if isinstance(self.resources, Mapping) else ()
        if not amounts or not all(NUMBER.holds(one) for one in amounts):
            raise ConfigurationError(
                f"Ray(resources={self.resources!r}): names and amounts, such as {{'CPU': 1, 'GPU': 1}}"
            )
        if self.placement not in PLACEMENTS:
            raise ConfigurationError(f"Ray(placement={self.placement!r}): one of {', '.join(PLACEMENTS)}")
