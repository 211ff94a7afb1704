"""Packing and unpacking 1e7 float32 numbers on one thread: compiled kernels against torch, with a memory copy beside them.

python benchmarks/codecs.py --json codecs.json
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from _report import Row, interleave, parser, report, row
from plesio.strategy.answers import Codec, Int4, Int8, TopK
from plesio.tensors.codecs import packer_for

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.codec_twins import twin_of

NUMBERS = 10_000_000
TARGETS = {("int8", "pack"): 4, ("4-bit", "pack"): 7, ("int8", "add"): 3, ("4-bit", "add"): 8, ("top 1%", "pack"): 8}


def gigabytes_per_s(task: Callable[[], object], nbytes: int, times: int) -> float:
    """The best of some passes, over what they read of float32."""
    best = float("inf")
    for _ in range(times):
        began_s = time.process_time()
        task()
        best = min(best, time.process_time() - began_s)
    return nbytes / best / 1e9


def one(codec: Codec, what: str, compiled: bool, numbers: int, times: int) -> float:
    """Packing of a delta with error feedback, or adding what is packed."""
    source = torch.Generator().manual_seed(0)
    start, now = (torch.randn(numbers, generator=source) for _ in range(2))
    held, out = torch.zeros(numbers), torch.zeros(numbers)
    arithmetic = packer_for(codec) if compiled else twin_of(packer_for(codec))
    into = torch.zeros(arithmetic.room(numbers), dtype=torch.uint8)
    pack = partial(arithmetic.pack, start, now, into, held)
    pack()
    task = pack if what == "pack" else partial(arithmetic.add_into, into, out, 0.25)
    task()
    return gigabytes_per_s(task, 4 * numbers, times)


def copied(numbers: int, times: int) -> float:
    """A copy of as many numbers."""
    here, there = torch.ones(numbers), torch.zeros(numbers)
    return gigabytes_per_s(lambda: there.copy_(here), 4 * numbers, times)


def start_up() -> float:
    """What a fresh process pays to load the compiled kernels, in seconds."""
    script = (
        "import time, torch; import plesio.tensors.codecs as c; from plesio.strategy.answers import Int8; a = torch.ones(512);"
        "b = time.perf_counter(); p = c.packer_for(Int8()); i = torch.zeros(600, dtype=torch.uint8); p.pack(a, -a, i, None);"
        "p.add_into(i[: p.room(512)], a, 1.0); print(time.perf_counter() - b)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Each codec, both ways."""
    arguments = parser("Codecs, compiled against torch.", runs=5).parse_args()
    torch.set_num_threads(1)
    runs, numbers, times = (1, 10_000, 1) if arguments.quick else (arguments.runs, NUMBERS, 5)
    rows: list[Row] = [row("memory copy", [copied(numbers, times)], "GB/s")]
    for codec in (Int8(), Int4(), TopK(0.01)):
        for what in ("pack", "add"):
            tasks = {
                name: partial(one, codec, what, name == "compiled", numbers, times) for name in ("compiled", "torch")
            }
            values = interleave(tasks, runs, f"{codec} {what}")
            target = TARGETS.get((str(codec), what))
            against = {"against": "torch", "against_values": values["torch"], "target": target and f">= {target}"}
            rows.append(row(f"{codec}: {what}", values["compiled"], "GB/s", **against))
    rows.append(row("start-up of the kernels", [start_up() for _ in range(runs)], "s"))
    report("Codecs, of 1e7 float32 numbers", rows, arguments.json)


if __name__ == "__main__":
    main()
