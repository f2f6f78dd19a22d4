"""The loading half of a run in a process of its own, which has nothing but the file.

What survives a resume only because it was still in memory (a registry by ``id``, a module's global) is lost there, as
it is for a user.
"""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import torch

from inbackward.scenario import Resume, Scenario
from inbackward.training.drive import isolated, iterate
from inbackward.training.driver import Driver
from inbackward.training.implementation import Implementation
from inbackward.training.in_backward import side
from inbackward.training.new_process import run
from inbackward.training.resume import go_on, load_both
from inbackward.training.setting import Condition, NotRun, Setting
from inbackward.training.trace import Record
from inbackward.wording import named, one_line, said


def go_on_elsewhere(implementation: Implementation, driver: Driver, event: Resume) -> list[Record]:
    """Save ``driver`` to a file, and return the records of the process that loads it and goes on to the end.

    Raises:
        NotRun: the implementation cannot be handed to another process, since it has no importable name.
        RuntimeError: what the other process raised; it left before its end, or did not end within the deadline.
    """
    setting = driver.setting
    try:
        task = pickle.dumps((implementation, setting.scenario, str(setting.device), event, setting.condition()))
    except Exception as error:
        raise NotRun(f"the implementation cannot be pickled for another process ({said(error)}); {_MEND}") from None
    with tempfile.TemporaryDirectory(prefix="inbackward-") as name:
        folder = Path(name)
        (folder / "task").write_bytes(task)
        checkpoint = {
            "model": setting.model.state_dict(),
            "optimizer": driver.state_dict(),
            "schedule": driver.schedule.state_dict() if driver.schedule is not None else None,
            "rng": torch.get_rng_state(),
        }
        torch.save(checkpoint, folder / "checkpoint")
        status, last = run(folder, forks=setting.device.type == "cpu")
        unimportable, records = folder / "unimportable", folder / "records"
        if unimportable.exists():
            why = unimportable.read_text(encoding="utf-8")
            raise NotRun(f"another process cannot import the implementation ({why}); {_MEND}")
        if status != 0:
            raise RuntimeError(f"in the process that resumes: {last}")
        if not records.exists():
            raise RuntimeError("in the process that resumes: it left with status 0 before the end of the training")
        found: list[Record] = pickle.loads(records.read_bytes())
        return found


_MEND = "define it in a module that can be imported by name"


def main(folder: Path) -> None:
    """Load, train to the end, and leave the records in the folder, or why it cannot begin.

    The exit status tells neither, since the user's code may leave with any.
    """
    try:
        implementation, scenario, device, event, condition = pickle.loads((folder / "task").read_bytes())
    except BaseException as error:  # importing runs the user's code, which may raise anything, or exit
        (folder / "unimportable").write_text(one_line(named(error)), encoding="utf-8")
        return
    torch.set_num_threads(1)
    records = _second_half(implementation, scenario, torch.device(device), event, condition, folder / "checkpoint")
    (folder / "records").write_bytes(pickle.dumps(records))


def _second_half(
    implementation: Implementation,
    scenario: Scenario,
    device: torch.device,
    event: Resume,
    condition: Condition,
    file: Path,
) -> list[Record]:
    checkpoint = torch.load(file, weights_only=False)
    with isolated(scenario.seed):
        driver = side(implementation, event.loaded_by, Setting(scenario, device, fresh=True))
        driver.setting.assume(condition)
        go_on(driver, event, load_both(checkpoint), checkpoint["schedule"])
        torch.set_rng_state(checkpoint["rng"])
        return [iterate(scenario, driver, i, observed=True) for i in range(event.at, scenario.iterations)]
