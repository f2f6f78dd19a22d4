"""Files that a run leaves: written whole or not at all, and found unwritable before the run, not after it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from inbackward.report.report import Row


def write_json(path: str | Path, document: dict[str, Any]) -> None:
    """Write a report; the file appears whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """``write_bytes`` of UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write to a temporary name beside ``path``, then rename; into a device or a link as it stands.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path)
    try:
        if _written_in_place(path):
            path.write_bytes(content)
        else:
            _replace(path, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk names no file


def _replace(path: Path, content: bytes) -> None:
    temporary = _beside(path)
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(path: str | Path) -> None:
    """Refuse a path that ``write_text`` could not write, leaving no trace of the attempt.

    Raises:
        OSError: as ``write_text`` would raise it.
    """
    path = Path(path)
    if path.exists() and not path.is_dir() and not os.access(path, os.W_OK):
        raise PermissionError(13, "Permission denied")
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory")
    if not _written_in_place(path):
        temporary = _beside(path)
        temporary.touch(exist_ok=False)
        temporary.unlink()


def require_folder(folder: Path) -> None:
    """Make a folder that is to hold files, and refuse one that cannot.

    Raises:
        OSError: it cannot be made, or nothing can be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def save_replay(folder: Path, result: Row) -> Path | None:
    """Write the decisive scenario of a failure into ``folder`` for ``inbackward replay``; ``None`` where that fails."""
    return save_scenario(folder, result.entry["divergence"]["scenario"], result.scenario)


def save_scenario(folder: Path, label: str, text: str) -> Path | None:
    """Write a scenario called ``requirement/name`` into ``folder``, which ignores itself in git if it is made here."""
    path = folder / f"{label.replace('/', '-')}.json"
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)  # another worker may be making it
            write_text(folder / ".gitignore", "*\n")
        write_text(path, text)
    except OSError:
        return None  # a report without a replay line is better than none
    return path


def _written_in_place(path: Path) -> bool:
    """A symlink, device or pipe is what the user meant to write into, not a name to give to another file."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
