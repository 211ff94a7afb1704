"""`make test ROOM=...` finds the tests of a room, and CONTRIBUTING.md lists them."""

from __future__ import annotations

import pytest

from support import rooms


@pytest.mark.thorough
def test_contributing_lists_the_test_files_of_each_room() -> None:
    listed = rooms.CONTRIBUTING.read_text(encoding="utf-8")
    assert rooms.BEGIN in listed
    assert listed == rooms.written(listed), "make the list anew: PYTHONPATH=tests python -m support.rooms --write"


def test_every_room_has_tests() -> None:
    names = {room: [path.name for path in files] for room, files in rooms.files_of().items()}
    assert [room for room, files in names.items() if not files] == ["entry", "runner"]  # by `ps.run`
    assert {"test_departures.py", "test_opening.py"} <= {*names["server"]}
    assert names["integrations"] == ["test_lora.py", "test_trainers.py"]
    assert "test_on_ray.py" in names["ray"]  # it knows `ps.Ray` alone


def test_a_room_is_run_with_its_docstrings() -> None:
    assert [*rooms.files_of()["attachments"], rooms.SOURCE / "attachments"] == rooms.to_run("attachments")
    with pytest.raises(SystemExit, match="there is no room 'serv'; the rooms: attachments, capabilities, cli, "):
        rooms.to_run("serv")
