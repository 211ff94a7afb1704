"""Simulated machines: the real decisions and the real gradients in virtual time."""
