"""Moves bytes, decides nothing."""
