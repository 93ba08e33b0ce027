"""Errors that the command line reports in one line, and hints for misspelt names."""

from __future__ import annotations

from trainables.utils.suggestions import suggest_nearest_name

__all__ = ["RayUnavailableError", "StudyError", "suggest_nearest_name"]


class StudyError(Exception):
    """Wrong input of the user: the message is one line and the command exits with code 2."""


class RayUnavailableError(Exception):
    """Ray cannot be reached or started; the study's journal is intact, the message is one line."""
