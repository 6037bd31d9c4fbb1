"""Access to an instance over SSH: facts, steps, reboot, locking and log collection."""
