"""What the operating system gives: memory that processes share, and files that outlive a power cut."""
