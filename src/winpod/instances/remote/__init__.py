"""An instance over SSH: opened, read, changed step by step, restarted, and its logs collected."""
