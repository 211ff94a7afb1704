"""What the fork server of tests does once (see `conftest`)."""

from plesio.tables import load_kernels

load_kernels()
