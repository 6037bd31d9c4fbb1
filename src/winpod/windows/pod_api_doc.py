"""docs/pod-api-on-windows.md, written from the table: `python -m winpod.windows.pod_api_doc`."""

from __future__ import annotations

from winpod.windows.pod_api_rule import Behaviour, FieldRule, Topic
from winpod.windows.pod_api_table import FIELD_RULES

_INTRODUCTION = """\
# The Pod API on Windows

Every field of a Pod that is different on Windows, or that people expect to be. The same table is
what `winpod check` walks; this page is written from it (`python -m winpod.windows.pod_api_doc`).

How to read a row:

- **Field** is a path in the Pod. `containers[*]` means init and ephemeral containers too, where
  they have the field.
- **When** is the value the row is about. Other values behave as on Linux.
- **os: windows** is what happens where the pod states `spec.os.name: windows`, **no os** where it
  does not. From Kubernetes 1.24 on, the API server refuses Linux fields in the first case; in the
  second it takes them, and the node meets them.
- **Since** is the Kubernetes version or the Windows build with which this begins.

| word | meaning | `winpod check` |
|---|---|---|
| works | as on Linux, or as documented for Windows | silent |
| differs | takes effect, but not as on Linux | a note, where there is something to do |
| ignored | the pod runs as if the field were not there | a warning |
| rejected | the API server refuses the pod | an error |
| fails | the pod is accepted, and then not scheduled, not admitted by the node or not started | \
an error |

Stating `spec.os.name: windows` is worth it: what would be ignored in silence becomes an error that
is seen at once.
"""

_HEADER = "| Field | When | os: windows | no os | Since | What happens, and what to write instead |"
_RULE = "|---|---|---|---|---|---|"


def document() -> str:
    sections = [_INTRODUCTION]
    for topic in Topic:
        rows = [_line(rule) for rule in FIELD_RULES if rule.topic is topic]
        sections.append("\n".join((f"## {topic}\n", _HEADER, _RULE, *rows)) + "\n")
    return "\n".join(sections)


def _line(rule: FieldRule) -> str:
    cells = (
        "<br>".join(f"`{path}`" for path in rule.fields),
        rule.when.words,
        _emphasised(rule.os_stated),
        _emphasised(rule.os_unstated),
        _since(rule),
        f"{rule.what} {rule.instead}".strip(),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _emphasised(behaviour: Behaviour) -> str:
    silent = behaviour in (Behaviour.WORKS, Behaviour.DIFFERS)
    return str(behaviour) if silent else f"**{behaviour}**"


def _since(rule: FieldRule) -> str:
    return f"{rule.since}; before: {rule.before}" if rule.since else ""


if __name__ == "__main__":
    print(document(), end="")
