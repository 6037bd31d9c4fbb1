"""Regenerate the chart's CRDs from the operator's, and `deploy/manifests` from the chart."""

import tempfile
from pathlib import Path

from tests.e2e.helm import CRDS, MANIFESTS, as_yaml, plain_manifests

if __name__ == "__main__":
    for file, crd in CRDS.items():
        file.write_text(as_yaml(crd))
    with tempfile.TemporaryDirectory() as home:
        wanted = plain_manifests(Path(home))
    MANIFESTS.mkdir(exist_ok=True)
    for file in MANIFESTS.glob("*.yaml"):
        if file.name not in wanted:
            file.unlink()
    for name, text in wanted.items():
        (MANIFESTS / name).write_text(text)
