"""Where an interrupted run is taken up again: one file, written whole or not at all, of this run and no other."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch

NAME = "checkpoint.pt"


class Checkpoint:
    """A file in a folder, for the run that ``key`` describes.

    Args:
        key: what the numbers depend on, as plain data: another key is another run.
    """

    def __init__(self, folder: Path, key: dict[str, Any]) -> None:
        self.path = folder / NAME
        self.key = key

    def load(self) -> dict[str, Any] | None:
        """What was saved last; ``None`` where there is nothing.

        Raises:
            ValueError: the file is of another run, or is no checkpoint; one line with the mend.
        """
        if not self.path.exists():
            return None
        mend = "give another --out, or remove it to begin anew"
        try:
            found = torch.load(self.path, map_location="cpu", weights_only=False)
            key, state = found["run"], found["state"]
        except Exception as error:  # a file of that name may hold anything
            raise ValueError(
                f"{self.path} is no checkpoint of this command ({type(error).__name__}); {mend}"
            ) from error
        if key != self.key:
            other = [name for name in {**self.key, **key} if key.get(name) != self.key.get(name)]
            raise ValueError(f"{self.path} is of a run with another {', '.join(other)}; {mend}")
        assert isinstance(state, dict)
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write under a temporary name, then rename: a kill leaves the last one, or this one.

        Raises:
            OSError: the file cannot be written.
        """
        content = io.BytesIO()  # into a file of its own, torch.save tells a full disk by a RuntimeError
        torch.save({"run": self.key, "state": state}, content)
        temporary = self.path.with_name(f".{NAME}.tmp")
        try:
            temporary.write_bytes(content.getbuffer())
            os.replace(temporary, self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """The run has ended, and its results are written."""
        for path in (self.path, self.path.with_name(f".{NAME}.tmp")):
            path.unlink(missing_ok=True)
