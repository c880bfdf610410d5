"""What commands have in common: their exit codes, and how much of a long list they show."""

from __future__ import annotations

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
