"""The commands of the box that ask nothing of the machine they run on, as they are there."""

from __future__ import annotations

import click

from plimsoll.box import cli


class OfBox(click.Command):
    """A command of the box by its name, with its own options, help and exit codes: click looks at none of its words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep every word, a `--` too."""
        ctx.args = args
        return args

    def invoke(self, ctx: click.Context) -> int:
        """Run it, and return its exit code."""
        try:
            return cli.main([str(self.name), *ctx.args])
        except SystemExit as ended:  # argparse's way to end after its help, or with a word on what was wrong
            return ended.code if isinstance(ended.code, int) else 0
