"""critest, the CRI conformance suite, in its Windows build under Wine, against a winpod runtime."""
