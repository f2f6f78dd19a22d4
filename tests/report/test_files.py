"""Files appear whole or not at all, and what could not be written is found before the run."""

import errno
import json
import os
from pathlib import Path

import pytest
from test_report_rows import ROWS

from inbackward.report import require_writable, save_replay, write_json
from inbackward.scenario import Scenario


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_written_whole(tmp_path):
    write_json(tmp_path / "report.json", {"a": 1})
    write_json(tmp_path / "report.json", {"a": 2})
    assert json.loads((tmp_path / "report.json").read_text()) == {"a": 2}
    assert names(tmp_path) == ["report.json"]


def test_others_may_read_it_as_the_umask_says(tmp_path):
    (tmp_path / "ordinary").touch()
    write_json(tmp_path / "report.json", {})
    assert (tmp_path / "report.json").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.parametrize("failing", ["os.replace", "pathlib.Path.write_bytes"])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, failing):
    (tmp_path / "report.json").write_text("old")

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "report.json", {})
    assert (tmp_path / "report.json").read_text() == "old"
    assert names(tmp_path) == ["report.json"]


def test_nan_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "report.json", {"a": float("nan")})
    assert names(tmp_path) == []


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    require_writable(tmp_path / "link.json")
    write_json(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == {"a": 1}


def test_a_device_stays_a_device():
    require_writable(os.devnull)
    write_json(os.devnull, {})
    assert not Path(os.devnull).is_file()


def test_a_writable_path_is_left_as_it_was(tmp_path):
    (tmp_path / "old.json").write_text("old")
    require_writable(tmp_path / "old.json")
    require_writable(tmp_path / "new.json")
    assert names(tmp_path) == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("", IsADirectoryError),
        ("nowhere/report.json", FileNotFoundError),
        ("file/report.json", NotADirectoryError),
        ("x" * 250 + ".json", OSError),
    ],
)
def test_an_unwritable_path_is_found_at_once(tmp_path, path, error):
    (tmp_path / "file").touch()
    with pytest.raises(error):
        require_writable(tmp_path / path)
    with pytest.raises(error):
        write_json(tmp_path / path, {})
    assert names(tmp_path) == ["file"]


def test_a_replay_folder_ignores_itself(tmp_path):
    path = save_replay(tmp_path / "deep" / "replays", ROWS["not equivalent"])
    assert path == tmp_path / "deep" / "replays" / "plain-llama-adamw.json"
    assert Scenario.load(path).label == "plain/llama-adamw"
    assert (path.parent / ".gitignore").read_text() == "*\n"


def test_a_folder_that_was_there_is_not_touched(tmp_path):
    save_replay(tmp_path, ROWS["not equivalent"])
    assert names(tmp_path) == ["plain-llama-adamw.json"]


def test_no_replay_is_better_than_no_report(tmp_path):
    (tmp_path / "replays").write_text("in the way")
    assert save_replay(tmp_path / "replays", ROWS["not equivalent"]) is None
