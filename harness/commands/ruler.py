"""The groups `ruler` and `data`. Their commands (tasks/ruler/commands.py, data.py) are imported when called for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


class _Elsewhere(click.Group):
    """A group whose commands are those of the group `source` ("module:attribute")."""

    def __init__(self, *args: Any, source: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._source = source

    def _group(self) -> click.Group:
        module, _, attribute = self._source.partition(":")
        return getattr(import_module(module), attribute)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._group().list_commands(ctx)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self._group().get_command(ctx, name)


@click.group(cls=_Elsewhere, source="tasks.ruler.commands:ruler")
def ruler() -> None:
    """Generate RULER samples, or score predictions; no model is needed."""


@click.group(cls=_Elsewhere, source="harness.commands.data:data")
def data() -> None:
    """Say which benchmark data is there, or fetch it."""
