"""Tests of the operator's settings and their errors."""

import re
from decimal import Decimal
from pathlib import Path

import pytest

from winpod.errors import InvalidInput
from winpod.operator.settings import (
    AdmissionSettings,
    OperatorSettings,
    format_class_name,
    read_settings,
)
from winpod.placement.model import Toleration
from winpod.windows.builds import parse_build

DOCUMENT = Path(__file__).parents[2] / "docs/runtimeclasses.md"
EVERYTHING = """
classes:
  enabled: false
  name: win-{number}
  hypervisorName: win-{build}-guest
  overhead: {memory: 100Mi, cpu: 50m}
  removeAfterSeconds: 10
  tolerations:
  - {key: dedicated, operator: Exists}
labels: {enabled: false}
admission:
  enabled: false
  failOpen: false
  tagSeconds: 60
  budgetSeconds: 2.5
  refuseUnplaceable: false
  exemptNamespaces: [kube-system, monitoring]
"""


@pytest.mark.parametrize("text", ["", "{}", "classes: {}", "classes:\nlabels:\nadmission:\n"])
def test_missing_settings_have_defaults(text: str) -> None:
    assert read_settings(text) == OperatorSettings()


def test_all_settings_are_read() -> None:
    assert read_settings(EVERYTHING) == OperatorSettings(
        classes=False,
        class_name="win-{number}",
        hypervisor_class_name="win-{build}-guest",
        overhead=(("cpu", Decimal("0.05")), ("memory", Decimal(100 * 1024**2))),
        tolerations=(Toleration("dedicated", "Exists"),),
        remove_after_seconds=10,
        labels=False,
        admission=AdmissionSettings(False, False, 60, 2.5, False, ("kube-system", "monitoring")),
    )


def test_documentation_shows_the_defaults() -> None:
    shown = DOCUMENT.read_text().partition("```yaml\n")[2].partition("```")[0]
    assert read_settings(shown) == OperatorSettings()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "the operator's settings are not YAML"),
        ("- classes", "the object must be a mapping"),
        ("clases: {}", "clases is not a setting (there are admission, classes, instances, labels"),
        ("classes: {naem: x}", "classes.naem is not a setting"),
        ("classes: {enabled: 'yes'}", "classes.enabled must be true or false"),
        ("classes: {name: windows}", "classes.name is"),
        ("classes: {name: 'win-{year}'}", "classes.name is"),
        ("classes: {name: 'win-{'}", "classes.name is"),
        ("classes: {name: 'win-{}'}", "classes.name is"),
        ("classes: {name: 'win-{release.real}'}", "classes.name is"),
        (
            "classes: {name: 'Win_{release}'}",
            "class names may only contain a-z, 0-9, dashes and dots",
        ),
        ("classes: {hypervisorName: 'windows-{release}'}", "must differ from classes.name"),
        ("classes: {overhead: {memory: lots}}", "classes.overhead.memory must be a quantity"),
        ("classes: {tolerations: [{operator: Maybe}]}", "classes.tolerations[0].operator is"),
        ("classes: {removeAfterSeconds: -1}", "classes.removeAfterSeconds is -1"),
        ("labels: {enable: true}", "labels.enable is not a setting"),
        ("admission: {budgetSeconds: 60}", "admission.budgetSeconds is 60"),
        ("admission: {tagSeconds: soon}", "admission.tagSeconds must be a number"),
        ("admission: {exemptNamespaces: kube-system}", "admission.exemptNamespaces must be a list"),
    ],
)
def test_errors_name_their_field(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_settings(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 1000, "nested too deeply"),
        ("classes: {name: 2020-13-45}", "month must be in 1..12"),
        (f"admission: {{tagSeconds: {'9' * 5000}}}", "4300 digits"),
        (f"labels: {{enabled: true}} # {'x' * 70_000}", "the limit is 65536"),
        ("classes: {name: 'x{number:>999999999}'}", "no other braces"),
        ("classes: {name: '{release!r}'}", "no other braces"),
    ],
)
def test_arbitrary_input_is_rejected_with_a_message(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        read_settings(text)


@pytest.mark.parametrize(
    ("template", "build", "architecture", "name"),
    [
        ("windows-{release}", "2019", "amd64", "windows-2019"),
        ("windows-{release}", "1903", "amd64", "windows-1903"),
        ("windows-{release}", "23h2", "amd64", "windows-23h2"),
        ("windows-{release}", "10.0.27000", "amd64", "windows-27000"),
        ("windows-{release}-hyperv", "10.0.17763.805", "amd64", "windows-2019-hyperv"),
        ("win-{number}", "2022", "amd64", "win-20348"),
        ("win-{build}", "10.0.20348.1", "amd64", "win-10.0.20348"),
        ("windows-{release}", "2025", "arm64", "windows-2025-arm64"),
    ],
)
def test_class_name_has_the_release_of_its_build(
    template: str, build: str, architecture: str, name: str
) -> None:
    assert format_class_name(template, parse_build(build), architecture) == name
