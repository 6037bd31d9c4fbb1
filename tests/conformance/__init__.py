"""critest, the CRI's own suite, in its Windows build under Wine, against a whole winpod runtime."""
