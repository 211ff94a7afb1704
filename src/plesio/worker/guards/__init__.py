"""Checks of what a training function does that would otherwise give wrong results silently."""
