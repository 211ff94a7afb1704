"""The run's memory: the sequencer decides what becomes of tensors, and this does it (`plesio.memory.port`)."""
