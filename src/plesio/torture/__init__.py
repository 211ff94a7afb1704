"""Fault simulation: the real core under a lossy network, crashing processes and a forgetful disk."""
