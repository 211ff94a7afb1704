"""Shared by tests: training functions that worker processes can import, and the process table."""
