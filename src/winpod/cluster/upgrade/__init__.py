"""From one Windows build to the next: planned, done step by step, and undone on failure."""
