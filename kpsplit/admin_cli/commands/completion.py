"""``kpsplit completion bash|zsh|fish``."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


HELP = """Print a completion script for a shell.

\b
bash:  source <(kpsplit completion bash)
zsh:   source <(kpsplit completion zsh)
fish:  kpsplit completion fish > ~/.config/fish/completions/kpsplit.fish
"""


@click.command("completion", help=HELP)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    from kpsplit.admin_cli.main import COMPLETE_VARIABLE, PROGRAM

    script = SHELLS[shell](ctx.find_root().command, {}, PROGRAM, COMPLETE_VARIABLE)
    click.echo(script.source_template % script.source_vars())
