"""How long is waited for an instance, and how often it is asked meanwhile, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """`run` is how long a script may take where nobody says otherwise, and `answer` what is only
    collected. `file` is how long nothing may be heard of a file that is on its way.

    Of a restart: `going` until it is down, `coming` until it is back, `told` between two words of
    how long it has been away. Who holds it says so again each `renew`, and waits for `settle` where
    another held it before.
    """

    run: float = 300.0
    file: float = 120.0
    answer: float = 60.0
    poll: float = 1.0
    poll_restart: float = 2.0
    going: float = 300.0
    coming: float = 1800.0
    told: float = 60.0
    renew: float = 20.0
    settle: float = 1.0
