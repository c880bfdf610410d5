"""`say_event`: a line on stdout, by a command that serves; and what to do when stdout has no reader any more."""

from __future__ import annotations

import json
import os
import sys

import click


def say_event(as_json: bool, text: str, **values: object) -> None:
    """Print the text, or the values as JSON. A server whose lines cannot be written goes on serving."""
    try:
        click.echo(json.dumps(values) if as_json else text)
        sys.stdout.flush()
    except OSError:  # A reader that is gone (`serve | head -1`), a full disk.
        drop_stdout()


def drop_stdout() -> None:
    """Let everything that is printed from now on, and what could not be written before, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
