"""What every run promises, whatever struck it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

import plesio as ps
from support.paced import made_twice
from torture.standbys.plan import EPOCHS

if TYPE_CHECKING:
    from torture.standbys.story import Story

WENT_BACK = "the run went back from version "
GOES_ON = re.compile(r"goes on from version (\d+)")


def check(story: Story) -> None:
    """Raises `AssertionError` with what is broken."""
    done = story.last.done
    _told(story)
    _one_head_a_version(story)
    if not story.over_apart:
        assert not done.batches_unvisited, f"{done.batches_unvisited} batches were not visited"
        _exactly_once(story, done)
    assert done.folder is not None, "it wrote one"
    again = ps.replay(done.folder, train=story.train)
    assert again.identical, f"it does not replay: {again}"


def _told(story: Story) -> None:
    """Nothing that was answered is undone under "standby"; else whoever saw it is told."""
    for host in story.ours.all:
        told = host.log.count(WENT_BACK)
        assert not told or story.plan.acknowledge == "head", f"{host.name} went back: {host.log}"
        story.tally["went back, and told"] += told
    for rank, host in story.ours.workers.items():
        versions = [version for version, _ in story.ours.saw(rank)]
        back = sum(later < earlier for earlier, later in pairwise(versions))
        assert back <= host.log.count(WENT_BACK), f"worker {rank} went back {back} times, and was not told"


def _one_head_a_version(story: Story) -> None:
    """No version was made twice that workers were answered, but for those that were undone."""
    if not story.plan.counts:
        return  # what a worker has is not a version alone
    twice = made_twice(story.ours.seen)
    undone = [int(one) for leader in story.ours.leaders for one in GOES_ON.findall(leader.log)]
    story.tally["versions undone"] += len(twice)
    assert not twice or story.plan.acknowledge == "head", f"versions {twice} were made twice"
    assert not twice or (undone and min(twice) > min(undone)), (
        f"versions {twice} were made twice; undone: after {undone}"
    )


def _exactly_once(story: Story, done: ps.Run) -> None:
    """Each batch is one version of an asynchronous run, and in the weights as often as there are epochs."""
    if story.plan.strategy.name.startswith("async_sgd"):
        assert done.version == story.plan.batches, f"{done.version} versions, of {story.plan.batches} batches"
    if story.plan.counts and story.plan.strategy.name.startswith("async_sgd"):
        weights = done.tables["ids"].get_extra_state()["values"] if story.plan.tables else done.state_dict["weight"]
        visits = -weights.flatten()
        assert torch.equal(visits, torch.full_like(visits, EPOCHS)), f"visits: {sorted(set(visits.tolist()))}"
