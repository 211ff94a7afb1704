"""LoRA on sites that talk seldom: what travels, how much of the time they train, and what becomes of adapters that differ.

    python benchmarks/lora.py --json lora.json                    # a quarter of an hour
    python benchmarks/lora.py --only links,means

Three parts. `links`: two sites behind 20 Mbit/s and 20 ms each way, in virtual time. What is exchanged and the steps of large
models under `decoupled(50)`, with adapters of rank 16 at each linear layer, and with all weights. `real`: two processes that join
over TCP, each through a relay of 20 Mbit/s, with a Llama of 3 million parameters, under `decoupled(24)`. A step takes 250 ms:
what is left of that a worker sleeps, as while an accelerator computes. `means`: four sites whose texts are of four kinds adapt
the same small Llama. The loss is on held-out text of all four, after local steps with A and B averaged apart, by their products,
and of all weights.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import sysconfig
import tempfile
import time
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import plesio as ps
from _report import Row, meets, parser, progress, report, row
from bandwidth import through_relays
from plesio.cluster import Cluster, Constant, Group, Link
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import TimedWorker

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import lora

RATE, LATENCY_S, SITES = 2.5e6, 0.02, 2
IDEAL, ALL = "always computing", "all weights"
LARGE = {  # the shapes of Llama 3.2 1B and 3.1 8B; seconds a step
    "1.2e9 parameters, 1 s a step": (1.0, {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}),
    "8.1e9 parameters, 3 s a step": (3.0, {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}),
}
TEXTS = ("pydoc_data/topics.py", "html/entities.py", "encodings/cp*.py", "tkinter/*.py")
MEANS = {  # local steps, rounds, rank, learning rate of adapters
    "50 steps, 4 rounds, rank 4": (50, 4, 4, 3e-3),
    "100 steps, 3 rounds, rank 8, a high rate": (100, 3, 8, 1e-2),
}
FULL_LR = 1e-3


def counted(model: torch.nn.Module) -> tuple[int, int]:
    """How many parameters are trained, and how many there are."""
    sizes = [(one.numel(), one.requires_grad) for one in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


# Virtual time


def links(seconds: float) -> list[Row]:
    """Large models, of which nothing is computed."""
    found = []
    for title, (step_s, shape) in LARGE.items():
        with torch.device("meta"):
            config = LlamaConfig(vocab_size=128_256, num_attention_heads=32, num_key_value_heads=8, **shape)
            config.tie_word_embeddings = shape["num_hidden_layers"] == 16
            sizes = counted(get_peft_model(LlamaForCausalLM(config), LoraConfig(r=16, target_modules="all-linear")))
        found.append(
            row(f"{title}: MB an exchange, each way", [4e-6 * sizes[0]], "MB", against=ALL, against_values=[4e-6 * sizes[1]])
        )  # fmt: skip
        ways = (("adapters", sizes[0], None), ("adapters, bf16", sizes[0], "bf16"), (ALL, sizes[1], None))
        round_s = {}
        for what, count, codec in ways:
            strategy = ps.decoupled(50, codec=codec)
            nbytes = count * (2 if codec else 4)
            cluster = Cluster((Group(SITES, Constant(step_s), Link(LATENCY_S, RATE)),))
            workers = [TimedWorker(one, strategy, goes_on=True) for one in cluster.timetables(0)]
            limits = {"seconds": seconds}
            run = VirtualRun(strategy, cluster, workers, push_nbytes=nbytes, answer_nbytes=nbytes, limits=limits).run()
            steps_per_s, ideal = run.steps / seconds, SITES / step_s
            share, round_s[what] = steps_per_s / ideal, seconds / run.version
            progress.print(f"{title}, {what}: {share:.3f}, a round every {round_s[what]:.0f} s")
            target = None if what == ALL else ">= 0.97"
            met = meets(share, target) if target else None
            found.append(Row(f"{title}: {what}", steps_per_s, "steps/s", IDEAL, ideal, share, target, met, 1))
        for what in ("adapters", "adapters, bf16"):
            measure, values = f"{title}: seconds a round, {what}", [round_s[what]]
            found.append(row(measure, values, "s", against=ALL, against_values=[round_s[ALL]]))
    return found


# Real processes

STEP_S, EVERY = 0.25, 24
SMALL = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4}


def parts(full: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **SMALL))
    model = model if full else get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    return model, torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=1e-3)


def timed(steps: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """How long each step takes."""
    found = []
    for _ in range(steps):
        began_s = time.perf_counter()
        tokens = torch.randint(1000, (1, 8))
        optimizer.zero_grad()
        lora.loss_of(model, tokens).backward()
        optimizer.step()
        time.sleep(max(0.0, began_s + STEP_S - time.perf_counter()))
        found.append(time.perf_counter() - began_s)
    return found


def work(address: str, steps: int, full: bool) -> None:
    """One site, in a process of its own: how long its steps take alone, and in the run."""
    torch.set_num_threads(1)
    alone = timed(10, *parts(full))
    with ps.join(address=f"tcp://{address}", insecure=True) as worker:
        model, optimizer = worker.prepare(*parts(full))
        began_s = time.perf_counter()
        within = [timed(1, model, optimizer)[0] for _ in worker.steps(steps * SITES)]
        took_s = time.perf_counter() - began_s
    alone += timed(10, *parts(full))
    alone_s = min(statistics.median(alone), statistics.median(within))
    print(json.dumps({"alone_s": alone_s, "took_s": took_s}), flush=True)


def real(steps: int, runs: int) -> list[Row]:
    """Over links of 20 Mbit/s: of adapters so many steps, of all weights three exchanges."""
    ways = {"adapters": (), ALL: ("--full",)}
    shares, sent = {way: [] for way in ways}, {way: [] for way in ways}
    for number in range(runs):
        for way, more in ways.items():
            many = steps if way == "adapters" else 3 * EVERY + 5
            share, step_s, nbytes = through_relays(
                "decoupled", many, {"every": EVERY}, __file__, RATE, LATENCY_S, *more
            )
            progress.print(
                f"{way}, run {number + 1}: {share:.3f} of the ideal, {nbytes:,.0f} bytes, a step {step_s:.3f} s"
            )
            shares[way].append(share)
            sent[way].append(nbytes)
    found = [row(f"real, {way}: share of the ideal", shares[way], "", target=target)
             for way, target in (("adapters", ">= 0.97"), (ALL, None))]  # fmt: skip
    of_bytes = [one / other for one, other in zip(sent["adapters"], sent[ALL], strict=True)]
    of_parameters = [counted(parts(full=False)[0])[0] / counted(parts(full=True)[0])[1]] * runs
    found.append(
        row("real: bytes of an exchange, there and back", sent["adapters"], "B", against=ALL, against_values=sent[ALL])
    )
    found.append(
        row("real: share of the bytes", of_bytes, "", against="of the parameters", against_values=of_parameters, target="<= 1.01")
    )  # fmt: skip
    return found


# Adapters that differ


@functools.cache
def text(site: int, held_out: bool) -> torch.Tensor:
    """What a site has; the last tenth is held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob(TEXTS[site]))
    data = b"".join(one.read_bytes() for one in files)[:400_000]
    whole = torch.frombuffer(bytearray(byte for byte in data if byte < lora.CHARACTERS), dtype=torch.uint8).long()
    cut = 9 * len(whole) // 10
    return whole[cut:] if held_out else whole[:cut]


def model_of(base: str, rank: int) -> LlamaForCausalLM | PeftModel:
    """Of rank 0 without adapters: all of it is trained."""
    return lora.adapted(lora.base(base), rank) if rank else lora.base(base)


def train(worker: ps.Worker, base: str, steps: int, rank: int, lr: float, seed: int) -> None:
    model = model_of(base, rank)
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=lr)
    model, optimizer = worker.prepare(model, optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        lora.loss_of(model, lora.batch(text(worker.rank, False), 1_000_003 * seed + 7 * step + worker.rank)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def loss_after(base: str, strategy: ps.Strategy, steps: int, rank: int, lr: float, seed: int) -> float:
    """On text of all sites that was held out, in nats a character."""
    function = functools.partial(train, base=base, steps=steps, rank=rank, lr=lr, seed=seed)
    run = ps.run(function, strategy, workers=len(TEXTS), engine=ps.Simulated("uniform"), progress=False)
    model = model_of(base, rank)
    model.load_state_dict(run.state_dict)
    with torch.no_grad():
        return statistics.fmean(
            lora.loss_of(model, lora.batch(text(site, True), 5, 128)).item() for site in range(len(TEXTS))
        )


def means(quick: bool, runs: int) -> list[Row]:
    """A and B apart, by their products, and all weights."""
    found = []
    with tempfile.TemporaryDirectory() as base:
        lora.pretrain(base, 20 if quick else 400)
        for title, (every, rounds, rank, lr) in MEANS.items():
            every, rounds = (3, 2) if quick else (every, rounds)
            ways = {
                "A and B apart": (ps.local_sgd(every), rank, lr),
                "low_rank": (ps.local_sgd(every, combine="low_rank"), rank, lr),
                ALL: (ps.local_sgd(every), 0, FULL_LR),
            }
            losses: dict[str, list[float]] = {way: [] for way in ways}
            for seed in range(runs):
                for way, (strategy, of_rank, rate) in ways.items():
                    losses[way].append(loss_after(base, strategy, every * rounds, of_rank, rate, seed))
                    progress.print(f"{title}, {way}, seed {seed}: {losses[way][-1]:.4f}")
            first, low, full = losses.values()
            found.append(row(f"{title}: A and B apart", first, "nats"))
            found.append(
                row(f"{title}: low_rank", low, "nats", against="apart", against_values=first, target="<= 0.999")
            )
            found.append(row(f"{title}: {ALL}", full, "nats", against="apart", against_values=first))
    return found


def main() -> None:
    given = parser((__doc__ or "").splitlines()[0], runs=3)
    given.add_argument("--only", default="links,real,means", help="which parts, with commas")
    given.add_argument("--work", nargs=2, metavar=("ADDRESS", "STEPS"), help=argparse.SUPPRESS)
    given.add_argument("--full", action="store_true", help=argparse.SUPPRESS)
    arguments = given.parse_args()
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    if arguments.work:
        work(arguments.work[0], int(arguments.work[1]), arguments.full)
        return
    torch.set_num_threads(1)
    quick, found = arguments.quick, []
    runs = 1 if quick else arguments.runs
    if "links" in arguments.only:
        found += links(10_000.0 if quick else 100_000.0)
    if "real" in arguments.only:
        found += real(2 * EVERY + 5 if quick else 7 * EVERY + 5, runs)
    if "means" in arguments.only:
        found += means(quick, runs)
    report("Adapters between sites of 20 Mbit/s", found, arguments.json)


if __name__ == "__main__":
    main()
