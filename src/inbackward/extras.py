"""What is installed only on request: found missing before any work is done, with the line that installs it."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {"plots": ("matplotlib", "jinja2"), "tensorboard": ("tensorboard",), "wandb": ("wandb",)}


def require_extra(extra: str, what: str) -> None:
    """Refuse ``what`` where a package of ``extra`` is not installed.

    Raises:
        ValueError: one line with the command that installs it.
    """
    for package in EXTRAS[extra]:
        if find_spec(package) is None:
            raise ValueError(f"{what} needs {package}, which is not installed; run pip install 'inbackward[{extra}]'")
