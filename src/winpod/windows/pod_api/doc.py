"""Generates docs/pod-api-on-windows.md from the table: `python -m winpod.windows.pod_api.doc`."""

from __future__ import annotations

from winpod.windows.pod_api.rule import Behaviour, FieldRule, Topic
from winpod.windows.pod_api.table import FIELD_RULES

_INTRODUCTION = """\
# The Pod API on Windows

Every field of a Pod that behaves differently on Windows, or is expected to. `winpod check` uses the
same table; this page is generated from it (`python -m winpod.windows.pod_api.doc`).

How to read a row:

- **Field** is a path in the Pod. `containers[*]` means init and ephemeral containers too, where
  they have the field.
- **When** is the value the row applies to. Other values behave as on Linux.
- **os: windows** is what happens if the pod sets `spec.os.name: windows`, **no os** if it does not.
  Since Kubernetes 1.24, the API server rejects Linux fields in the first case; in the second it
  accepts them and leaves them to the node.
- **Since** is the first Kubernetes version or Windows build with this behaviour.

| word | meaning | `winpod check` |
|---|---|---|
| works | as on Linux, or as documented for Windows | silent |
| differs | takes effect, but not as on Linux | a note, if there is something to do |
| ignored | the pod runs as if the field were not set | a warning |
| rejected | the API server refuses the pod | an error |
| fails | the pod is accepted, and then not scheduled, not admitted by the node or not started | \
an error |

Set `spec.os.name: windows`: fields that would be ignored silently then cause an error at once.
"""

_HEADER = "| Field | When | os: windows | no os | Since | What happens, and what to write instead |"
_RULE = "|---|---|---|---|---|---|"


def render_document() -> str:
    sections = [_INTRODUCTION]
    for topic in Topic:
        rows = [_line(rule) for rule in FIELD_RULES if rule.topic is topic]
        sections.append("\n".join((f"## {topic}\n", _HEADER, _RULE, *rows)) + "\n")
    return "\n".join(sections)


def _line(rule: FieldRule) -> str:
    cells = (
        "<br>".join(f"`{path}`" for path in rule.fields),
        rule.when.description,
        _emphasised(rule.os_stated),
        _emphasised(rule.os_unstated),
        _since(rule),
        f"{rule.effect} {rule.alternative}".strip(),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _emphasised(behaviour: Behaviour) -> str:
    silent = behaviour in (Behaviour.WORKS, Behaviour.DIFFERS)
    return str(behaviour) if silent else f"**{behaviour}**"


def _since(rule: FieldRule) -> str:
    return f"{rule.since}; before: {rule.before}" if rule.since else ""


if __name__ == "__main__":
    print(render_document(), end="")
