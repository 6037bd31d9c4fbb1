"""Create and run containers: the container spec, and the backends that run it."""
