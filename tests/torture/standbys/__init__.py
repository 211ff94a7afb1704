"""Real runs with standbys: hosts die, stand still, or are cut off, run after run, and each promise is checked."""
