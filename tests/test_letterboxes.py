"""Letters from processes beside the driver to listeners, over files of a directory of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import letterboxes
from sluice.letterboxes import Letterbox, post
from sluice.private_files import is_of_this_user_alone

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there are no letterboxes elsewhere")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "boxes"


def test_every_listener_gets_every_letter_once_in_order(place: Path) -> None:
    """And those that are closed get none."""
    one, two, closed = Letterbox(place), Letterbox(place), Letterbox(place)
    closed.close()
    posted = [post(lambda n=n: {"n": n}, place) for n in range(12)]  # type: ignore[misc]

    assert posted == [2] * 12
    assert [each["n"] for each in one.take()] == [each["n"] for each in two.take()] == list(range(12))
    assert one.take() == closed.take() == []
    one.close()
    two.close()
    assert not place.exists()


def test_the_directory_may_go_while_a_letterbox_is_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process closes the last one at that moment."""
    is_ours = is_of_this_user_alone
    removals = iter([place.rmdir])

    def looked_at(status: os.stat_result) -> bool:
        found = is_ours(status)
        next(removals, lambda: None)()
        return found

    monkeypatch.setattr(letterboxes, "is_of_this_user_alone", looked_at)
    box = Letterbox(place)
    posted = post(lambda: {"n": 1}, place)
    box.close()

    assert posted == 1


def test_without_a_listener_no_letter_is_written(place: Path) -> None:
    """Not even made."""

    def write() -> dict[str, int]:
        raise AssertionError

    assert post(write, place) == 0
    place.mkdir(mode=0o700)
    assert post(write, place) == 0


def test_the_box_of_a_listener_that_was_killed_is_removed(place: Path) -> None:
    """Whoever writes next removes it."""
    code = (
        "import os, pathlib, sys; from sluice.letterboxes import Letterbox; "
        "box = Letterbox(pathlib.Path(sys.argv[1])); os._exit(9)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run((sys.executable, "-c", code, str(place)), check=False, env=environment, timeout=300)
    left = list(place.iterdir())

    assert len(left) == 1
    assert post(dict, place) == 0
    assert list(place.iterdir()) == []


def test_a_directory_that_others_can_write_to_is_not_used(place: Path) -> None:
    """They could read and forge letters."""
    place.mkdir()
    place.chmod(0o777)
    box = Letterbox(place)

    assert post(lambda: {"n": 1}, place) == 0
    assert box.take() == []
    box.close()


def test_a_listener_that_takes_nothing_fills_no_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its box holds so many letters, and no more. Others go on."""
    monkeypatch.setattr(letterboxes, "_MOST_LETTERS", 4)
    box = Letterbox(place)
    posted = [post(dict, place) for _ in range(5)]
    box.take()

    assert posted == [1, 1, 1, 0, 0]  # the lock is a file, too
    assert post(dict, place) == 1
    box.close()


def test_a_file_system_that_refuses_fails_nothing(place: Path) -> None:
    """Neither the one who writes nor the listener."""
    place.write_text("no directory")

    box = Letterbox(place)
    assert post(dict, place) == 0
    assert box.take() == []
    box.close()


def test_damaged_letters_are_dropped(place: Path) -> None:
    """Such as one that a full disk cut off."""
    box = Letterbox(place)
    directory = next(place.iterdir())
    (directory / "0.json").write_text('{"n": ')
    (directory / "1.json").write_text("[]")
    post(lambda: {"n": 1}, place)

    assert box.take() == [{"n": 1}]
    box.close()
