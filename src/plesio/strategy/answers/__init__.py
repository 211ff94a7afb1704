"""The answers to the six questions, one small pure class each.

An answer holds numbers and decides from arguments; it never asks the time, draws a random number or touches a tensor.
Each class checks its own numbers when it is built; `plesio.strategy.strategy` checks that answers fit each other.
Other rooms never ask of which class an answer is. They ask the answer itself, or find the arithmetic for it in the one
table of `plesio.memory.folder`.
"""

from plesio.strategy.answers.answer import Answer as Answer
from plesio.strategy.answers.codec import *
from plesio.strategy.answers.combine import *
from plesio.strategy.answers.fold import *
from plesio.strategy.answers.privacy import *
from plesio.strategy.answers.release import *
from plesio.strategy.answers.secure import *
from plesio.strategy.answers.weigh import *
from plesio.strategy.answers.work import *
