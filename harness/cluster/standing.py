"""How a run's engines stand, in words for the progress line."""

from __future__ import annotations

from collections.abc import Iterable

from harness.cluster.fleet import Fleet
from harness.cluster.member import State
from harness.text import counted


def standing(fleets: Iterable[Fleet]) -> str:
    """For example "2 engines (5,310 and 4,900 tokens/s), 1 starting, 1 restart"; empty without a fleet.

    `fleets`: one per model that is answered now.
    """
    fleets = list(fleets)
    if not fleets:
        return ""
    rates = [
        fleet.records[m.name].rate(fleet.clock())
        for fleet in fleets
        for m in fleet.members
        if m.state is State.READY and m.name in fleet.records
    ]
    text = counted(len(rates), "engine")
    if rates and len(rates) <= 4:
        text += f" ({' and '.join(f'{rate:,.0f}' for rate in rates)} tokens/s)"
    elif rates:
        text += f" ({min(rates):,.0f} to {max(rates):,.0f} tokens/s each)"
    states = [m.state for fleet in fleets for m in fleet.members]
    waiting = states.count(State.SPAWNING)
    others = len(states) - len(rates) - waiting - states.count(State.GIVEN_UP)
    restarts = sum(fleet.restarts for fleet in fleets)
    text += f", {others} starting" if others else ""
    text += f", {waiting} waiting for a place" if waiting else ""
    text += f" (for {len(fleets)} models at once)" if len(fleets) > 1 else ""
    return text + (f", {counted(restarts, 'restart')}" if restarts else "")
