"""User session on a guest. Standard library only: it runs with the guest's Python."""
