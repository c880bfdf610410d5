"""What commands have in common: their exit codes, how much of a long list they show, and their groups."""

from __future__ import annotations

import click

EXIT_FAILED = 1
EXIT_LEFT = 1
EXIT_NOTHING = 1
EXIT_PROBLEMS = 1
EXIT_CANNOT_START = 2
EXIT_HISTORY_LOST = 3
EXIT_IN_DANGER = 4
EXIT_NO_STORE = 2
EXIT_NO_TIER = 2
FINDINGS_SHOWN_MAX = 20


SAME = {"ls": "list", "list": "ls"}
"""Two words for one command, of which a group has one."""


class SuggestingGroup(click.Group):
    """A group that names the commands which an unknown one resembles, and takes `ls` for `list`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and SAME.get(args[0]) in names:
            args = [SAME[args[0]], *args[1:]]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            if args and (close := difflib.get_close_matches(args[0], self.list_commands(ctx))):
                raise click.UsageError(f"{error.message} Did you mean {' or '.join(close)}?", ctx) from error
            raise
