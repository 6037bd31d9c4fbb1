"""The operator's page: what it sees, for people, read-only."""
