"""How `tiermq tier` shows far timers: messages that wait in the tier for their time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tiermq.cli.tier_output import moment
from tiermq.delivery.far.timer_names import TimerName
from tiermq.delivery.far.timer_survey import TimerSurvey


def timer_values(surveys: Sequence[TimerSurvey], *, with_objects: bool) -> list[dict[str, Any]]:
    """One for each broker; times are when the first and the last of them is due."""
    return [
        {
            "cluster": survey.cluster,
            "broker": survey.broker,
            "timers": survey.count,
            "size": survey.size_bytes,
            "first_due_ms": survey.first_ms if survey.live else None,
            "last_due_ms": survey.last_ms if survey.live else None,
            "damaged": len(survey.manifest.damaged),
            "trouble": survey.trouble,
            "objects": [_object_values(survey, name) for name in survey.objects] if with_objects else len(survey.live),
        }
        for survey in surveys
    ]


def _object_values(survey: TimerSurvey, name: TimerName) -> dict[str, Any]:
    return {
        "timers": name.count,
        "size": name.size_bytes,
        "first_due_ms": name.first_ms,
        "last_due_ms": name.last_ms,
        "path": name.path(survey.directory),
    }


def show_timers(surveys: Sequence[TimerSurvey], *, with_objects: bool = False) -> None:
    """A line for each broker that has some, and on request one for each object."""
    for survey in surveys:
        if survey.live:
            until = f"due {moment(survey.first_ms)} to {moment(survey.last_ms)}"
            objects = f"{survey.size_bytes:,} bytes in {len(survey.live):,} objects"
            click.echo(f"  timers     {survey.count:,} of {survey.broker}, {until}, {objects}")
        if survey.trouble:
            click.echo(f"  timers     {survey.trouble}")
        for name in survey.objects if with_objects else ():
            times = f"{moment(name.first_ms)} {moment(name.last_ms)}"
            click.echo(f"{name.size_bytes:>14,}  {'TIMERS':6}  {name.path(survey.directory)}  {times}")
