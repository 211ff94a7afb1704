"""`plesio evaluate`: judge a run under way from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plesio.cli.script import functions_in
from plesio.cli.serve import Certs, Insecure
from plesio.errors import ConfigurationError, PlesioError


def evaluate(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the run waits for readers (--readers).")],
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Python file that defines evaluate(model), and model(), which builds one."),
    ],
    *,
    every_s: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="From one evaluation to the next, at least.")
    ] = 0.0,
    every_versions: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many versions later the next one is, at least.")
    ] = 1,
    timeout_s: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to try to reach the run, and its head if that is lost.")
    ] = 60.0,
    certs: Certs = None,
    insecure: Insecure = False,
) -> int:
    """Evaluate a run under way, version after version, until it ends; training never waits for it.

    What evaluate(model) returns is in the run's history, report and live page, as that of ps.run(evaluate=) is, and --until sees
    it. It is called in evaluation mode and under torch.no_grad(). The last version is always evaluated.

    What this proves is the token of workers: PLESIO_TOKEN, else what is in ~/.plesio/token.
    """
    judge, build = functions_in(file, "evaluate(model)", "model()")
    from torch import nn

    from plesio.launch.remote.read import read  # imports torch, too
    from plesio.observe.progress import metrics_in_words
    from plesio.server.judge import Judge

    judged, model = Judge(judge), build()
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"model() in {file} returned {model!r}; it is to build the run's model")
    with read(address, certs=certs, insecure=insecure, name="plesio evaluate", timeout_s=timeout_s) as reader:
        reader.tell({})  # a wrong token is told of at once, and the run's end waits for the last evaluation
        for _ in reader.versions(every_s=every_s, every_versions=every_versions):
            version, metrics = reader.load(model), judged(model)
            if judged.raised or not metrics:
                raise PlesioError(f"evaluate {f'raised {judged.raised}' if judged.raised else 'returned nothing'}")
            reader.tell(metrics)
            print(f"version {version:,}, {reader.time_s:.1f} s{metrics_in_words(metrics, None)}", flush=True)
    return 0
