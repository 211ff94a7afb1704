"""LoRA with peft and transformers, on workers that talk seldom: only the adapters travel.

    python examples/lora.py
    plesio run examples/lora.py --strategy local_sgd --set every=10 --set combine=low_rank --workers 2 -- --base base

A Llama of 110,000 parameters is made from a configuration and learns the source text of Python's standard library, character by
character; load your own in its place. Then two workers adapt it to English, the language's documentation. Their optimizers are
given what needs a gradient: the adapters, 8% of the model. These are left in `adapters`, the base is left in `base`.
"""

from __future__ import annotations

import argparse
import functools
import sysconfig
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import plesio as ps
from charlm import CHARACTERS, text

CONTEXT, BATCH = 48, 8
CONFIG = LlamaConfig(
    vocab_size=CHARACTERS,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=CONTEXT,
)


def base(folder: str | None = None) -> LlamaForCausalLM:
    """The same weights on every worker: those of a folder, or random ones."""
    if folder is not None:
        return LlamaForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG)


def adapted(model: LlamaForCausalLM, rank: int = 4) -> PeftModel:
    """With adapters at every linear layer, whose B are zero: they begin as no change."""
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=4 * rank, target_modules="all-linear"))


def english(held_out: bool) -> torch.Tensor:
    """The documentation of the language; the last tenth is held out."""
    data = (Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py").read_bytes()
    whole = torch.frombuffer(bytearray(byte for byte in data if byte < CHARACTERS), dtype=torch.uint8).long()
    cut = 9 * len(whole) // 10
    return whole[cut:] if held_out else whole[:cut]


def batch(source: torch.Tensor, seed: int, size: int = BATCH) -> torch.Tensor:
    """Random pieces of a text."""
    places = torch.randint(len(source) - CONTEXT, (size, 1), generator=torch.Generator().manual_seed(seed))
    return source[places + torch.arange(CONTEXT)]


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """In nats a character."""
    return model(input_ids=tokens, labels=tokens).loss


def pretrain(folder: str, steps: int) -> None:
    """One process, plain PyTorch: leaves the base in a folder."""
    model, source = base(), text(held_out=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(source, step, 2 * BATCH)).backward()
        optimizer.step()
    model.save_pretrained(folder)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", help="a folder with the base model; none: it is trained first")
    parser.add_argument("--base-steps", type=int, default=400, help="how long, then")
    parser.add_argument("--steps", type=int, default=600, help="of all workers together")
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()


def train(worker: ps.Worker, given: argparse.Namespace | None = None) -> None:
    given = given or options()
    model = adapted(base(given.base))
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=given.lr)
    model, optimizer = worker.prepare(model, optimizer)
    source = english(held_out=False)
    for step in worker.steps(given.steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch(source, worker.seed * 1_000_003 + step))
        worker.count(samples=BATCH)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        worker.log(loss=loss)


def evaluate(model: torch.nn.Module) -> dict[str, float]:
    """On English that was held out."""
    with torch.no_grad():
        return {"loss": loss_of(model, batch(english(held_out=True), 0, 256)).item()}


if __name__ == "__main__":
    given = options()
    if given.base is None:
        given.base = "base"
        pretrain(given.base, given.base_steps)
    run = ps.run(functools.partial(train, given=given), ps.diloco(10), workers=2, evaluate=evaluate)
    print(run)
    model = adapted(base(given.base))
    before = evaluate(model)["loss"]
    model.load_state_dict(run.state_dict)
    model.save_pretrained("adapters")
    sizes = {one: sum(each.numel() for each in model.parameters() if each.requires_grad or not one) for one in (0, 1)}
    print(f"{sizes[1]:,} of {sizes[0]:,} parameters travelled, {sizes[1] / sizes[0]:.1%}")
    merged = model.merge_and_unload()  # a plain Llama again
    print(f"loss {before:.2f} without adapters, {evaluate(merged)['loss']:.2f} with them merged")
