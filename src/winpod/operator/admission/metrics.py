"""Prometheus metrics of admission reviews and image lookups."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_REVIEW_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25)
_LOOKUP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class AdmissionMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._reviews = Counter(
            "winpod_admission_reviews",
            "Admission reviews of pods and workloads, by webhook and outcome.",
            ("webhook", "outcome"),
            registry=registry,
        )
        self._review_times = Histogram(
            "winpod_admission_review_duration_seconds",
            "Duration of admission reviews.",
            ("webhook",),
            registry=registry,
            buckets=_REVIEW_BUCKETS,
        )
        self._lookups = Counter(
            "winpod_image_lookups",
            "Image lookups by result.",
            ("result",),
            registry=registry,
        )
        self._lookup_times = Histogram(
            "winpod_image_lookup_duration_seconds",
            "Duration of image lookups at registries.",
            registry=registry,
            buckets=_LOOKUP_BUCKETS,
        )

    def count_review(self, webhook: str, outcome: str, seconds: float) -> None:
        self._reviews.labels(webhook, outcome).inc()
        self._review_times.labels(webhook).observe(seconds)

    def count_lookup(self, result: str, seconds: float | None = None) -> None:
        """Count a lookup; `seconds` is set if a registry was queried."""
        self._lookups.labels(result).inc()
        if seconds is not None:
            self._lookup_times.observe(seconds)
