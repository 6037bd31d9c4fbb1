"""What becomes of pods that somebody wants to create: the webhook, and how it decides."""
