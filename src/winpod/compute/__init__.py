"""One container's life: what is asked of it, made into a plan, and the plan made to run."""
