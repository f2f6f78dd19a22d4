"""A project of somebody else's, with the built wheel in a virtual environment inside it; pytest runs there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The package's wheel, built from a copy, so that nothing is left in the checkout."""
    copy, built = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", built, copy])
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def environment(tmp_path_factory, wheel):
    """A virtual environment that finds torch and pytest in this one's, and ``inbackward`` in the wheel."""
    folder = tmp_path_factory.mktemp("environment") / ".venv"
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    (packages,) = folder.glob("[Ll]ib/**/site-packages")
    parents = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "parent.pth").write_text("\n".join(parents), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", interpreter(folder), "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", wheel])
    return folder


def interpreter(environment: Path) -> Path:
    return environment / ("Scripts" if os.name == "nt" else "bin") / "python"


class Foreign:
    """The project in a folder: ``write`` its files, run its ``python``, run ``pytest`` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.interpreter = interpreter(folder / ".venv")

    def write(self, **files: str) -> None:
        """``name=text``; two underscores in a name are a folder's end."""
        for name, text in files.items():
            path = self.folder / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def python(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return run([self.interpreter, *arguments], self.folder, check=False)

    def pytest(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "pytest", *arguments)


@pytest.fixture
def foreign(tmp_path, environment):
    """An empty project with an environment of its own: a copy, as to install takes longer than most tests."""
    folder = tmp_path / "project"
    shutil.copytree(environment, folder / ".venv", symlinks=True)
    return Foreign(folder)


def run(command, folder=None, check=True):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHON", "COV_"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
