"""The file by which writers find the server of their query, in a directory of the test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sluice.channels.channel import Address
from sluice.query_server.rendezvous import Rendezvous, locked_directory

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there are no servers elsewhere")

SERVER = Address("127.0.0.1", 4000, b"secret", b"start")
OTHER = Address("127.0.0.1", 4001, b"secret", b"later")


def test_a_file_that_a_cleaner_took_is_written_again(tmp_path: Path) -> None:
    """Or the next batch would start another server, with a full bucket and without the paces learnt."""
    file = Rendezvous(tmp_path / "servers" / "1-abc")
    assert file.keep(SERVER)
    file.path.unlink()
    assert file.keep(SERVER)
    shutil.rmtree(file.path.parent)
    assert file.keep(SERVER)
    assert file.read() == SERVER


def test_the_file_of_another_server_is_left_alone(tmp_path: Path) -> None:
    """This one ends after its last task."""
    file = Rendezvous(tmp_path / "servers" / "1-abc")
    with locked_directory(file.path.parent):
        file.write(OTHER)

    assert not file.keep(SERVER)
    assert file.read() == OTHER


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """Tasks that are connected go on."""
    (tmp_path / "servers").write_text("no directory")

    assert not Rendezvous(tmp_path / "servers" / "1-abc").keep(SERVER)
