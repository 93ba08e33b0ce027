"""Names that may become parts of commands and file names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from study.cluster.validation import check_cluster_name, check_host_name, check_user_name
from study.errors import StudyError

pytestmark = pytest.mark.split

Check = Callable[[str, str], str]


@pytest.mark.parametrize(
    ("check", "word"),
    [
        (check_cluster_name, "team-b.2_x"),
        (check_cluster_name, "a" * 63),
        (check_user_name, "_ada.l-1"),
        (check_host_name, "10.0.0.2"),
        (check_host_name, "fd00::1"),
        (check_host_name, "node-3.lab"),
    ],
)
def test_valid_names_are_returned(check: Check, word: str) -> None:
    assert check(word, "--x") == word


@pytest.mark.parametrize(
    ("check", "word"),
    [
        (check_cluster_name, ""),
        (check_cluster_name, "a" * 64),
        (check_cluster_name, "../a"),
        (check_cluster_name, "a b"),
        (check_user_name, "-l"),
        (check_user_name, "me;reboot"),
        (check_host_name, "-oProxyCommand=x"),
        (check_host_name, "a."),
        (check_host_name, "a$b"),
    ],
)
def test_other_names_are_errors_with_option_and_value(check: Check, word: str) -> None:
    with pytest.raises(StudyError) as caught:
        check(word, "--x")
    assert str(caught.value).startswith("--x must be ")
    assert repr(word) in str(caught.value)
