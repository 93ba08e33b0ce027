"""Validation of names in cluster files, which become parts of commands and file names."""

from __future__ import annotations

import re

from study.errors import StudyError

CLUSTER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
USER_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
HOST_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")


def check_cluster_name(word: str, where: str) -> str:
    """Check a cluster's name and return it.

    Args:
        word: The name.
        where: Option or key that it was given with, for the error message.

    Raises:
        StudyError: It contains characters that are special in a shell or a path.
    """
    if not CLUSTER_NAME_PATTERN.fullmatch(word):
        raise StudyError(
            f"{where} must be at most 63 letters, digits, '.', '_' or '-', got {word!r}"
        )
    return word


def check_user_name(word: str, where: str) -> str:
    """Check a user name and return it; see `check_cluster_name`."""
    if not USER_NAME_PATTERN.fullmatch(word):
        raise StudyError(f"{where} must be a user name, got {word!r}")
    return word


def check_host_name(word: str, where: str) -> str:
    """Check a host name or address and return it; see `check_cluster_name`."""
    if not HOST_NAME_PATTERN.fullmatch(word):
        raise StudyError(f"{where} must be a host name or an address, got {word!r}")
    return word
