"""Letters from processes on the driver host to listeners, over files of a directory of the test."""

from __future__ import annotations

import os
import shutil
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


@pytest.mark.parametrize(("bound", "value"), [("_MOST_LETTERS", 4), ("_MOST_BYTES", 4 * len('{"n": 0}'))])
def test_a_listener_that_takes_nothing_fills_no_disk(
    place: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    """Its box holds so many letters, the last ones, and so many bytes."""
    monkeypatch.setattr(letterboxes, bound, value)
    box = Letterbox(place)
    for number in range(7):
        assert post(lambda n=number: {"n": n}, place) == 1  # type: ignore[misc]

    assert box.take() == [{"n": n} for n in (3, 4, 5, 6)]
    box.close()


def every_path_in(place: Path) -> list[Path]:
    return sorted(place.rglob("*"), reverse=True)


def test_whatever_a_cleaner_takes_letters_come_again(place: Path) -> None:
    """It takes one file after the other, however old the listener is: no box of a living one is removed."""
    box = Letterbox(place)
    post(lambda: {"n": 0}, place)
    for taken in range(len(every_path_in(place)) + 1):
        post(lambda: {"n": 1}, place)
        for path in [*every_path_in(place), place][: taken + 1]:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True) if path.is_file() else None
        for path in every_path_in(place):
            os.utime(path, (1, 1))
        for _ in range(3):  # the listener looks into its box at each event
            post(lambda: {"n": 2}, place)
            box.take()

        assert post(lambda: {"n": 3}, place) == 1
        assert box.take() == [{"n": 3}]
    box.close()
    assert not place.exists()


def test_a_letterbox_in_whose_place_something_else_is_is_made_again(place: Path) -> None:
    """As when a cleaner removed it and something made a directory of its name."""
    box = Letterbox(place)
    path = next(place.iterdir())
    path.rmdir()
    path.mkdir()
    box.take()

    assert post(lambda: {"n": 1}, place) == 1
    assert box.take() == [{"n": 1}]
    assert not path.exists()
    box.close()


def test_a_letterbox_is_made_as_soon_as_it_can_be(place: Path) -> None:
    """A disk may be full for a while. After `close` none is made."""
    place.write_text("no directory")
    box = Letterbox(place)
    place.unlink()
    box.take()

    assert post(lambda: {"n": 1}, place) == 1
    assert box.take() == [{"n": 1}]
    box.close()
    assert box.take() == []
    assert not place.exists()


def test_what_was_killed_in_the_making_is_removed(place: Path) -> None:
    """A letterbox without a name, and letters of which half is written; not those of a moment ago."""
    box = Letterbox(place)
    path = next(place.iterdir())
    for old, new in ((place / ".old", place / ".new"), (path / ".old", path / ".new")):
        old.mkdir() if old.parent == place else old.write_text("{")
        new.mkdir() if new.parent == place else new.write_text("{")
        os.utime(old, (1, 1))
    post(dict, place)
    box.take()

    assert sorted(each.name for each in every_path_in(place)) == sorted((".new", ".new", path.name))
    box.close()


def test_a_file_system_that_refuses_fails_nothing(place: Path) -> None:
    """Neither the one who writes nor the listener."""
    place.write_text("no directory")

    box = Letterbox(place)
    assert post(dict, place) == 0
    assert box.take() == []
    box.close()


def test_damaged_letters_are_dropped(place: Path) -> None:
    """For example a letter that a full disk cut off."""
    box = Letterbox(place)
    directory = next(place.iterdir())
    (directory / "0.json").write_text('{"n": ')
    (directory / "1.json").write_text("[]")
    post(lambda: {"n": 1}, place)

    assert box.take() == [{"n": 1}]
    box.close()
