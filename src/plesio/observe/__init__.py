"""What a run cost, measured, written and drawn."""
