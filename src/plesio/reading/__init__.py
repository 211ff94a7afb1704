"""Those who only read a run: its weights, and rows of its tables."""
