"""``inbackward selfcheck`` finds out that the suite is blind, or sees what is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inbackward import Implementation, faults
from inbackward.cli import main
from inbackward.faults import GALLERY, Fault
from inbackward.faults.right import AtStep, Right
from inbackward.selfcheck import check_all, check_fault, check_right

BY_NAME = {fault.name: fault for fault in GALLERY}
FEW = "stale-read"  # a requirement of few scenarios, that only AtStep holds to


class Bare:
    """Saves nothing, so that no scenario with a checkpoint can be run."""

    def __init__(self, params: Any, optimizer_cls: Any, **kwargs: Any) -> None:
        self.right = Right(params, optimizer_cls, **kwargs)

    def zero_grad(self) -> None:
        self.right.zero_grad()


def no_fault(target: Any, id: str = FEW) -> Fault:
    return Fault(name="none-at-all", target=target, requirement=id, sentence="Nothing is wrong with it.")


def right(target: Any, **declared: str) -> Implementation:
    unsupported = {id.replace("_", "-"): reason for id, reason in declared.items()}
    return Implementation.drop_in(target, unsupported=unsupported, name="said to be right")


def test_a_fault_that_is_caught_and_what_plain_says_of_it() -> None:
    seen = check_fault(BY_NAME["steps-before-the-late-read"])
    assert (seen.found, seen.plain, seen.wrong) == ("caught", False, False)
    assert seen.message.startswith("iteration ")
    assert check_fault(BY_NAME["gradient-in-bfloat16"]).plain


def test_a_right_one_that_is_called_a_fault_escapes() -> None:
    seen = check_fault(no_fault(AtStep))
    assert (seen.found, seen.wrong) == ("escaped", True)


def test_what_cannot_be_run_neither_escapes_nor_is_caught() -> None:
    seen = check_fault(no_fault(Bare, "weights-only-load"))
    assert (seen.found, seen.wrong) == ("not-run", False)
    assert "has no state_dict()" in seen.message


@pytest.mark.parametrize(
    ("implementation", "id", "found"),
    [
        (right(AtStep), FEW, "held"),
        (right(Right, stale_read="each is updated at once"), FEW, "declared"),
        (right(AtStep, stale_read="never tried"), FEW, "stale"),
        (right(Bare), "weights-only-load", "not-run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_comes_of_a_right_one(implementation: Implementation, id: str, found: str) -> None:
    seen = check_right(implementation, id)
    assert seen.found == found
    assert seen.wrong is (found == "stale")


def test_results_come_in_order_with_workers_and_without() -> None:
    some = [BY_NAME[name] for name in ("wrong-sign", "updates-copies", "steps-again")]
    found = [
        [(check.name, check.requirement, check.found) for check in check_all(some, [right(AtStep)], [FEW], workers)]
        for workers in (0, 2)
    ]
    assert (
        found[0] == found[1] == [*((f.name, f.requirement, "caught") for f in some), ("said to be right", FEW, "held")]
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command over a gallery of a few and one right implementation: its status, and what it wrote."""

    def run(gallery: list[Fault], implementation: Implementation, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(faults, "GALLERY", tuple(gallery))
        monkeypatch.setattr(faults, "RIGHT", (implementation,))
        status = main(["selfcheck", *arguments])
        return status, *capsys.readouterr()

    return run


def test_all_is_well(command: Any, tmp_path: Path) -> None:
    only = "--only", f"wrong-sign,{FEW}", "--json", str(tmp_path / "found.json")
    some = [BY_NAME[name] for name in ("wrong-sign", "the-last-at-once", "exits")]
    status, out, err = command(some, right(AtStep), *only)
    assert (status, err) == (0, "")
    assert "\ncaught  " in out
    assert out.splitlines()[-2:] == [
        "faults:  2 run: 2 caught, 1 of them not by plain; 0 NOT CAUGHT, 0 not run",
        "right:   1 implementations, 2 checks: 2 held, 0 declared, 0 ACCUSED, 0 declared without need, 0 not run",
    ]
    assert max(map(len, out.splitlines())) <= 120
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["schema"] == "inbackward.selfcheck/1"
    assert [check["found"] for check in document["checks"]] == ["caught", "caught", "held", "held"]


@pytest.mark.parametrize(
    ("gallery", "implementation", "status", "line"),
    [
        ([no_fault(AtStep)], right(AtStep), 1, "NOT CAUGHT"),
        ([BY_NAME["the-last-at-once"]], right(Right), 1, "ACCUSED"),
        ([BY_NAME["the-last-at-once"]], right(AtStep, stale_read="never tried"), 1, "DECLARED WITHOUT NEED"),
        ([no_fault(Bare, "weights-only-load")], right(Bare), 3, "not-run"),
    ],
)
def test_the_status_says_whether_the_suite_is_to_be_trusted(
    command: Any, gallery: list[Fault], implementation: Implementation, status: int, line: str
) -> None:
    found, out, _ = command(gallery, implementation, "--only", gallery[0].requirement)
    assert found == status
    assert f"\n{line}  " in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "wrong-sing"], "--only names no fault and no requirement 'wrong-sing'; did you mean 'wrong-sign'?"),
        (["--only", "wrong-sign", "--strategy", "fsdp2"], "--only and --strategy leave no fault to run; name fewer"),
        (["--strategy", "fsdp3"], "--strategy names no strategy 'fsdp3'; did you mean 'fsdp2'?"),
        (["--json", "no/such/folder.json"], "--json cannot write 'no/such/folder.json': No such file or directory;"),
    ],
)
def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["selfcheck", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"inbackward: error: {said}")
    assert len(err.splitlines()) == 1
