"""Terms of the field that one search of the module and class names has to find."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import winpod

SOURCE = Path(winpod.__file__).parent
TERMS = (
    "pleg",
    "prober",
    "eviction",
    "image gc",
    "container gc",
    "informer",
    "leader election",
    "csr",
    "termination message",
    "port forward",
    "seccomp",
    "idmapped mount",
    "cgroup",
    "CNI delete",
    "hive",
    "whiteout",
    "admission review",
    "drain",
    "hotplug",
    "virtiofs",
    "runtime client",
    "pod worker",
    "static pod",
    "mirror pod",
    "daemonset",
    "singleflight",
)


def names() -> Iterator[str]:
    """Yield `package.module`, `Class` and `Class.method`; private ones are not promised."""
    for path in SOURCE.rglob("*.py"):
        yield ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        class_ = ""
        for line in path.read_text().splitlines():
            if found := re.match(r"class ([A-Z]\w*)", line):
                class_ = found[1]
                yield class_
            elif class_ and (found := re.match(r"    (?:async )?def ([a-z]\w*)", line)):
                yield f"{class_}.{found[1]}"
            elif re.match(r"\w", line):
                class_ = ""


@pytest.fixture(scope="module")
def known() -> str:
    return "\n".join(names())


@pytest.mark.parametrize("term", TERMS)
def test_term_is_found(term: str, known: str) -> None:
    assert re.search(r"[._]?".join(term.split()), known, re.IGNORECASE)
