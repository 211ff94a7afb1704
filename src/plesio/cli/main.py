"""The program: its commands, and what a failure looks like."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from plesio import __version__, errors
from plesio.cli.certs import certs
from plesio.cli.compare import compare
from plesio.cli.demo import demo
from plesio.cli.evaluate import evaluate
from plesio.cli.groups import Command, CommandGroup
from plesio.cli.join import join
from plesio.cli.journal import journal
from plesio.cli.output import OutputLostError, give_up_output, prepare_output
from plesio.cli.replay import replay
from plesio.cli.rows import rows
from plesio.cli.run import run
from plesio.cli.runs import commands as runs
from plesio.cli.serve import serve
from plesio.cli.serve_rows import serve_rows
from plesio.cli.simulate import simulate
from plesio.cli.standby import standby
from plesio.cli.status import status
from plesio.cli.strategies import strategies
from plesio.cli.template import template
from plesio.cli.watch import watch
from plesio.cli.whatif import whatif
from plesio.launch.ctrl_c import ENDING, EndedBySignal, end_at_once, name_of
from plesio.launch.local.forkserver import ForkServer

FAILED, USAGE, BY_SIGNAL = 1, 2, 128
ASKED_WRONGLY = (errors.ConfigurationError, errors.ModelMismatchError, errors.SharedMemoryError, errors.StrategyError)


ORDER = (
    *("run", "compare", "demo", "simulate", "whatif", "watch", "status", "runs", "strategies"),
    *("serve", "join", "standby", "evaluate", "rows", "serve-rows"),
    *("template", "certs", "journal", "replay", "version"),
)
"""The commands by use, as the help lists them."""


class _Program(CommandGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:  # the parser would forget which signal it was
            number = _signal_of(stop) or signal.SIGINT
            doing = getattr(stop, "doing", "") or getattr(stop, "starting", "")
            what = "interrupted" if number == signal.SIGINT else f"ended by {name_of(number)}"
            _complain(f"{what} while {doing}" if doing else what)
            return BY_SIGNAL + number


commands = typer.Typer(
    name="plesio",
    cls=_Program,
    help="Train one PyTorch model on many workers, and choose how tightly they keep step.",
    epilog="Begin with: plesio demo, then plesio compare SCRIPT.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"plesio {__version__}")
        raise typer.Exit


@commands.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = (
        False
    ),
) -> None:
    pass


@commands.command(cls=Command)
def version() -> None:
    """Print the version, as --version does."""
    print(f"plesio {__version__}")


EXAMPLES: dict[Callable[..., Any], str] = {
    watch: "runs --port 8765",
    status: "10.0.0.1:8765",
    run: 'train.py --strategy "local_sgd(every=16)" --workers 4',
    compare: "train.py --workers 4 --slow 0:10 --pace 0.02 --until accuracy=0.95",
    simulate: "train.py --cluster one-straggler --strategy async_sgd --workers 64",
    serve: "--strategy async_sgd --workers 8 --listen 10.0.0.1:7070 --certs certs",
    join: "10.0.0.1:7070 train.py --certs certs",
    standby: "10.0.0.1:7070 --listen 10.0.0.2:7070 --certs certs",
    evaluate: "10.0.0.1:7171 judge.py --every-s 30 --certs certs",
    rows: "10.0.0.1:7171 users --ids 17,4",
    serve_rows: "10.0.0.1:7171 --listen 127.0.0.1:8080 --every-s 0.5",
    template: "slurm > train.sh",
    strategies: "--json",
    replay: "runs/20261121-101530-async_sgd",
    journal: "runs/20261121-101530-async_sgd --around 500",
    whatif: "runs/20261121-101530-sync_sgd --bandwidth 125MB",
    certs: "certs --host node1 --host node2,10.0.0.2",
}
for _command, _example in EXAMPLES.items():
    _name = _command.__name__.replace("_", "-")
    commands.command(cls=Command, epilog=f"For example: plesio {_name} {_example}")(_command)
commands.command(
    cls=Command,
    epilog="For example: plesio demo --strategies sync_sgd,async_sgd",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(demo)
commands.add_typer(runs, name="runs")


def app(arguments: Sequence[str] | None = None) -> NoReturn:
    prepare_output()
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end_at_once)
    try:
        code = main(arguments)
        sys.stdout.flush()
    except OutputLostError as error:
        give_up_output()
        _complain(f"standard output cannot be written: {error.strerror}; what it was to show is lost")
        ended_by = _signal_of(error)  # such as the closing of the terminal that it printed on
        code = FAILED if ended_by is None else BY_SIGNAL + ended_by
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # from here on it only takes moments
    ForkServer.close_shared(grace_s=0.5)
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for: 0 done, 1 a run failed, 2 asked for what cannot be, 130 Ctrl-C (128 + signal)."""
    command = typer.main.get_command(commands)
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = command.main(typed, prog_name="plesio", standalone_mode=False, obj=typed)
    except errors.PlesioError as error:
        _complain(errors.words_of(error))
        return USAGE if isinstance(error, ASKED_WRONGLY) else FAILED
    except Exception as error:
        if isinstance(error, OSError) and typed[:1] == ["--install-completion"]:
            _complain(f"completion cannot be installed: {error}; --show-completion prints the script")
            return FAILED
        if not hasattr(error, "format_message"):  # none of the command line parser's own
            raise
        return _usage_error(error)
    return result if isinstance(result, int) else 0


def _signal_of(error: BaseException | None) -> int | None:
    """The signal that ended the run, if one did; what failed since may hide it."""
    while error is not None:
        if isinstance(error, EndedBySignal | errors.RunInterrupted):
            return error.number
        error = error.__cause__ or error.__context__
    return None


def _usage_error(error: Any) -> int:
    """Print the parser's complaint in one line, or the help that it answers with."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, end="")
        return USAGE
    if hasattr(error.__cause__, "errors"):  # the parser has it from pydantic
        message = f"{message.rstrip('.')}, got {error.__cause__.errors()[0]['input']!r}"
    message = message.rstrip(".")
    if context is not None:
        takes_more = any(one.name == "arguments" for one in context.command.params)
        if takes_more and message.startswith("No such option"):
            message += "; what is the script's own goes behind --"
        message += f"{' See' if message.endswith('?') else '; see'} {context.command_path} --help"
    _complain(message)
    return USAGE


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # it may be a terminal that was closed
        print(f"plesio: {message}", file=sys.stderr)
