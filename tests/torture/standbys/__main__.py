"""`python -m torture.standbys --kills 500 --splits 200`: real runs with standbys, until so much has struck them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from plesio.cli.live import terminal
from torture.standbys.plan import CUT, KILLS, Plan, draw
from torture.standbys.story import tell

Kills = Annotated[int, typer.Option(min=0, help="How many heads, standbys and workers are to be killed or frozen.")]
Splits = Annotated[int, typer.Option(min=0, help="How often links are to be cut.")]
Seed = Annotated[int, typer.Option(help="The first seed.")]
Minutes = Annotated[float, typer.Option(help="Begin no run after so long.")]
Keep = Annotated[Path | None, typer.Option(metavar="DIR", help="Where the folders of runs that failed stay.")]


def standbys(kills: Kills = 20, splits: Splits = 10, seed: Seed = 0, minutes: Minutes = 60.0, keep: Keep = None) -> int:
    """Kill, freeze and cut off heads, standbys and workers of real runs, and check every promise."""
    console, tally, failed = terminal(), Counter[str](), 0
    end_s = time.monotonic() + 60 * minutes
    while (tally["kills"] < kills or tally[CUT] < splits) and time.monotonic() < end_s:
        plan = draw(seed, splits=tally[CUT] * kills < tally["kills"] * splits or tally["kills"] >= kills)
        console.print(f"seed {seed}: {plan}", markup=False, soft_wrap=True)
        happened, why = _apart(plan, keep)
        tally.update(happened)
        tally["runs"] += 1
        console.print(
            f"  {', '.join(f'{count} {what}' for what, count in happened.items() if count)}",
            style="dim",
            soft_wrap=True,
        )
        tally["kills"] = sum(tally[one] for one in set(KILLS))
        failed += bool(why)
        if why:
            console.print(f"seed {seed} FAILED: {why[-1500:]}", markup=False, soft_wrap=True, style="red")
        seed += 1
    console.print(_table(tally, failed))
    return 1 if failed else 0


def _apart(plan: Plan, keep: Path | None) -> tuple[Counter[str], str]:
    """Play it in a process of its own, so that no run leaves anything to the next; what happened, and what failed."""
    ours, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if not pid:
        theirs.send(_play(plan, keep))
        os._exit(0)
    theirs.close()
    try:
        happened: tuple[Counter[str], str] = ours.recv()
    except EOFError:
        happened = Counter(), "its process died"
    os.waitpid(pid, 0)
    return happened


def _play(plan: Plan, keep: Path | None) -> tuple[Counter[str], str]:
    folder, why, tally = Path(tempfile.mkdtemp(prefix="plesio-standbys-")), "", Counter[str]()
    try:
        tell(plan, folder / "run", tally)
    except BaseException:
        why = traceback.format_exc()
        if keep is not None:
            (folder / "why").write_text(why)
            shutil.copytree(folder, keep / f"seed-{plan.seed}", dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return tally, why


def _table(tally: Counter[str], failed: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for what, count in {"runs": tally.pop("runs"), "failed": failed, **dict(sorted(tally.items()))}.items():
        table.add_row(what, f"{count:,}")
    return table


if __name__ == "__main__":
    program = typer.Typer(add_completion=False)
    program.command()(standbys)
    sys.exit(program(prog_name="torture.standbys", standalone_mode=False) or 0)
