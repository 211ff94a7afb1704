"""`plesio replay`: an earlier run again, from its journal, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.live import terminal
from plesio.cli.options import Arguments, Function
from plesio.errors import ConfigurationError

if TYPE_CHECKING:
    from plesio.protocol.journal import JournalHead


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a journal.", show_default=False)],
    arguments: Arguments = None,
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The run's script, if it is no longer where it was.")
    ] = None,
    function: Function = "train",
    until: Annotated[
        int | None, typer.Option(metavar="VERSION", help="Stop at this version and write its weights.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write them; beside the journal if left out.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Go on even if script, libraries or machine are not the same.")
    ] = False,
    servers: Annotated[int, typer.Option(metavar="N", help="How many hold the rows of tables (ps.Table).")] = 1,
) -> int:
    """Do a run again from its journal, in one process, and say whether every version is the same bit for bit.

    Exits with 0 if every version that the journal holds is (what a damaged one lacks is said), with 1 if one differs.
    """
    from safetensors import SafetensorError

    from plesio.launch.replayed.replay import replay as do
    from plesio.observe.files import save_weights
    from plesio.protocol.journal import read_journal

    journal = read_journal(run)
    train = _train_of(journal.head, script, arguments, force, function)
    found = do(run, train, until=until, force=force, servers=servers)
    console = terminal()
    console.print(str(found), markup=False, soft_wrap=True)
    if not found.identical and not arguments:
        console.print(
            "If the run had --function or arguments, give replay the same: plesio replay RUN --function NAME -- ARGUMENTS",
            soft_wrap=True,
        )
    if until is not None or weights is not None:
        where = weights or journal.path.with_name(f"weights-{found.versions}.safetensors")
        try:
            save_weights(found.state_dict, where)
        except (OSError, SafetensorError) as error:
            raise ConfigurationError(
                f"the weights cannot be written to {where}: {error}; name another file with --weights"
            ) from error
        console.print(f"the weights of version {found.versions} are in {where}", markup=False, soft_wrap=True)
    return 0 if found.identical else 1


def _check_unchanged(head: JournalHead, script: Path) -> None:
    """Look at the files before anything in them is executed: one must be the file that the training function was in."""
    from plesio.observe.provenance import file_hash

    files = [path for path in (script, Path(head.script)) if path.is_file()]
    if head.script and head.train_hash not in map(file_hash, files):
        raise ConfigurationError(
            f"{' and '.join(map(str, dict.fromkeys(files)))}: not the file that the run trained with, which has changed or "
            "is another; nothing of it was executed; restore it, name the run's script with --script FILE, or go on all "
            "the same with --force"
        )


def _train_of(
    head: JournalHead, script: Path | None, arguments: list[str] | None, force: bool, function: str = "train"
) -> Callable[..., object]:
    """The training function to do it again with: from the script that is named, or the file it was in."""
    from plesio.cli.script import load

    path = script or Path(head.script)
    if not path.is_file():
        raise ConfigurationError(
            f"the run's script {str(script or head.script)!r} is not there; name it with --script FILE, or replay the run in "
            "Python: ps.replay(run, train)"
        )
    if not force:
        _check_unchanged(head, path)
    return load(path, arguments, function=function).train
