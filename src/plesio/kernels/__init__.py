"""Compiled kernels that several rooms share; each gives the bits of the plain loop that it stands for."""
