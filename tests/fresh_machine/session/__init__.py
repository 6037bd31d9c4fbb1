"""The session of a user on a guest. Standard library only: it runs with the guest's Python."""
