"""What the user chooses: `Strategy`, the answers to its six questions, and recipes, which are named strategies."""

from plesio.strategy.strategy import Strategy

__all__ = ["Strategy"]
