"""Everything that the processes of a run tell each other, and what they leave on disk of it."""
