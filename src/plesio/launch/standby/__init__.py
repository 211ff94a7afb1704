"""Who is head, between processes: those that vote, and those that may lead. `plesio.core.headship` decides."""
