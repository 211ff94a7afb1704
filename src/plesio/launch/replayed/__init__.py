"""A run again from its journal, bit for bit."""
