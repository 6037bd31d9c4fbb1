"""Reading what an instance is like, in one script; after a step, only what it may have changed.

Hashing every file after each step would take longer than the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from winpod.instances.remote.parts import Part, every_part, name_part, windows_part
from winpod.instances.remote.scripts import OddAnswer, Section, last_line
from winpod.instances.rules.desired import Question
from winpod.instances.rules.state import State
from winpod.windows.builds import Build

SURVEY_SECONDS = 600.0
_NOTHING = State(Build(10, 0, 0), "", "", "")


class Asked(Protocol):
    """An instance that answers scripts; `ssh.Host` is one."""

    name: str

    async def ask(self, parts: Iterable[Sequence[str]], seconds: float = ...) -> list[Section]: ...


async def survey(host: Asked, question: Question, seconds: float = SURVEY_SECONDS) -> State:
    """All of it."""
    return await survey_parts(host, _NOTHING, every_part(question), seconds)


async def identify(host: Asked) -> State:
    """Only which Windows it is and what it is called, on which what it should be depends."""
    return await survey_parts(host, _NOTHING, [windows_part(), name_part()])


async def survey_parts(
    host: Asked, before: State, parts: Sequence[Part], seconds: float = SURVEY_SECONDS
) -> State:
    """The state as it was, but for what these parts tell."""
    return (await run_and_survey(host, (), before, parts, seconds))[1]


async def run_and_survey(
    host: Asked,
    deeds: Sequence[Sequence[str]],
    before: State,
    parts: Sequence[Part],
    seconds: float,
) -> tuple[list[str], State]:
    """Run lines and read what they may have changed, in one go: what each said, and the state."""
    answers = await host.ask([*deeds, *(part.lines for part in parts)], seconds)
    said = [last_line(answer.text) for answer in answers[: len(deeds)]]
    try:
        return said, read_answers(before, parts, answers[len(deeds) :])
    except OddAnswer as error:
        raise OddAnswer(f"{host.name}: {error.sentence}", error.advice) from error


def read_answers(before: State, parts: Iterable[Part], answers: Iterable[Section]) -> State:
    state = before
    for part, answer in zip(parts, answers, strict=True):
        state = part.read(state, answer)
    return state
