"""The answers to the six questions, one small pure class each.

A rule holds numbers and decides from arguments; it never asks the time, draws a random number or touches a tensor.
Each class checks its own numbers when it is built; `plesio.strategy.strategy` checks that answers fit each other.
"""

from __future__ import annotations

from plesio.strategy.answers.admit import Everything, Fresh
from plesio.strategy.answers.adopt import LookAhead, Replace
from plesio.strategy.answers.correct import DelayCompensated, GapAware, Plain, WorkerMomentum
from plesio.strategy.answers.every import Seconds, Steps
from plesio.strategy.answers.gather import Buffer, Each, Round
from plesio.strategy.answers.outer import Average, UserOptimizer
from plesio.strategy.answers.release import AfterFold, Freely, Within
from plesio.strategy.answers.send import Gradient, Parameters
from plesio.strategy.answers.via import AllReduce, Server, SharedMemory
from plesio.strategy.answers.weigh import BySamples, DelayAdaptive, Equal, Hinge, Inverse, Polynomial

Every = Steps | Seconds
Send = Gradient | Parameters
Admit = Everything | Fresh
Weigh = Equal | Inverse | Polynomial | Hinge | DelayAdaptive | BySamples
Gather = Each | Buffer | Round
Correct = Plain | WorkerMomentum | DelayCompensated | GapAware
Outer = UserOptimizer | Average
Release = Freely | Within | AfterFold
Adopt = Replace | LookAhead
Via = Server | AllReduce | SharedMemory

__all__ = [
    "Admit",
    "Adopt",
    "AfterFold",
    "AllReduce",
    "Average",
    "Buffer",
    "BySamples",
    "Correct",
    "DelayAdaptive",
    "DelayCompensated",
    "Each",
    "Equal",
    "Every",
    "Everything",
    "Freely",
    "Fresh",
    "GapAware",
    "Gather",
    "Gradient",
    "Hinge",
    "Inverse",
    "LookAhead",
    "Outer",
    "Parameters",
    "Plain",
    "Polynomial",
    "Release",
    "Replace",
    "Round",
    "Seconds",
    "Send",
    "Server",
    "SharedMemory",
    "Steps",
    "UserOptimizer",
    "Via",
    "Weigh",
    "Within",
    "WorkerMomentum",
]
