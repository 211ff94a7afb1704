"""Pure decisions: events in, effects out. No socket, thread, clock, random source, environment or tensor here."""
