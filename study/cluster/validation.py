"""Which words of a cluster file may become parts of commands and of file names?"""

from __future__ import annotations

import re

from study.errors import StudyError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")


def check_name(word: str, where: str) -> str:
    """A cluster's name, unless it is none.

    Raises:
        StudyError: It holds what a shell or a path would read as something else.
    """
    if not NAME.fullmatch(word):
        raise StudyError(
            f"{where} takes at most 63 letters, digits, '.', '_' or '-', but got {word!r}"
        )
    return word


def check_user(word: str, where: str) -> str:
    """A user's name; as `check_name`."""
    if not USER.fullmatch(word):
        raise StudyError(f"{where} takes a user name, but got {word!r}")
    return word


def check_host(word: str, where: str) -> str:
    """A host's name or address; as `check_name`."""
    if not HOST.fullmatch(word):
        raise StudyError(f"{where} takes a host name or an address, but got {word!r}")
    return word
