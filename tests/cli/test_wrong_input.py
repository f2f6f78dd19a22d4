"""Bad input: one line on stderr that says what is wrong and how to mend it, status 2, and no run."""

import sys

import pytest

from inbackward.verification import Suite

DIFFERS = "is no implementation of an optimizer in backward; return Implementation.drop_in(...)"
CASES = {
    "": "the following arguments are required: COMMAND; see 'inbackward --help'",
    "verfy": "argument COMMAND: invalid choice: 'verfy' (choose from ",
    "verify --jsn x": "unrecognized arguments: --jsn",
    "verify --onl plain": "unrecognized arguments: --onl",
    "verify --only": "argument --only: expected one argument; see 'inbackward verify --help'",
    "verify --only plian": "--only names no requirement 'plian'; did you mean 'plain'?",
    "verify --only plain,lr-shedule": "--only names no requirement 'lr-shedule'; did you mean 'lr-schedule'?",
    "verify --skip resme": "--skip names no requirement 'resme'; did you mean 'resume'?",
    "verify --only qqqq": "--only names no requirement 'qqqq'; see 'inbackward requirements'",
    "verify --only plain,": "--only names no requirement ''; see 'inbackward requirements'",
    "verify --only hsdp": "--only names 'hsdp', which --strategy single does not run; ask for one of its own",
    "verify --only plain@ddp": "--only names 'plain@ddp'; give the id alone, and strategies by --strategy",
    "verify --only plain --skip plain": "--only and --skip leave no requirement to check; skip fewer",
    "verify --strategy fdsp2": "--strategy names no strategy 'fdsp2'; did you mean 'fsdp2'?",
    "verify --strategy qqqq": "--strategy names no strategy 'qqqq'; choose from single, ddp, fsdp2",
    "verify --world-size 0": "argument --world-size: 0 is below 1",
    "verify --strategy ddp --world-size 65": "the world size is 65; it must be in [1, 64], as all ranks are",
    "verify --world-size two": "argument --world-size: 'two' is not a whole number",
    "verify --seed 1.5": "argument --seed: '1.5' is not a whole number",
    "verify --seed=-1": "seed is -1; it must be in [0, 20000)",
    "verify --seed 20000": "seed is 20000; it must be in [0, 20000)",
    "verify --profile fast": "argument --profile: invalid choice: 'fast' (choose from ",
    "verify --device tpu": "argument --device: invalid choice: 'tpu' (choose from ",
    "verify mine": "the target is 'mine'; write it as module:attribute, such as inbackward:OptimizerInBackward",
    "verify nowhere:X": "the target 'nowhere:X' does not import: ModuleNotFoundError: No module named 'nowhere'; "
    "run where it can be imported from, or install it",
    "verify mine:Hott": "the target 'mine:Hott': module mine has no attribute 'Hott'; did you mean 'Hot'?",
    "verify mine:number": f"the target mine:number: 3 {DIFFERS}",
    "verify mine:small": "the target mine:small: small takes no (params, optimizer_cls, **kwargs); return Implem",
    "verify torch.optim:AdamW": "the target torch.optim:AdamW takes no (params, optimizer_cls, **kwargs); "
    "to judge a plain optimizer, give --optimizer torch.optim:AdamW",
    "verify mine:typo": "Implementation.unsupported names no requirement 'lr-shedule'; did you mean 'lr-schedule'?",
    "verify mine:Hot --optimizer torch.optim:SGD": "argument --optimizer: not allowed with argument TARGET",
    "verify --optimizer nowhere:X": "--optimizer 'nowhere:X' does not import: ModuleNotFoundError",
    "verify --optimizer mine:number": "--optimizer mine:number is 3; name an optimizer class",
    "verify --optimizer mine:NeedsLr": "the reference optimizer mine:NeedsLr cannot be built with {}: NeedsLr.__init__"
    "() missing 1 required positional argument: 'lr'; give its arguments by Implementation(",
    "verify --model mine": "model.factory is 'mine'; write it as module:attribute",
    "verify --model mine:smal": "--model 'mine:smal': module mine has no attribute 'smal'; did you mean 'small'?",
    "verify --model mine:number": "--model mine:number cannot be built: TypeError: 'int' object is not callable",
    "verify --model mine:raising": "--model mine:raising cannot be built: RuntimeError: no weights here",
    "verify --model mine:narrow": "--model mine:narrow cannot be trained: IndexError: Target ",
    "verify --model mine:exits": "--model mine:exits cannot be built: SystemExit: 0",
    "verify --model mine:infinite": "--model mine:infinite has the losses [nan, nan] in the usual loop; mend",
    "verify --optimizer mine:Exits": "the code under test ends the program, by SystemExit(0); let it raise",
    "curves --model mine:exits": "--model mine:exits cannot be built: SystemExit: 0",
    "verify --json .": "--json cannot write '.': Is a directory; name a file in a folder that exists",
    "verify --json no/where.json": "--json cannot write 'no/where.json': No such file or directory; name a file in a",
    "verify --json mine.py/x": "--json cannot write 'mine.py/x': Not a directory; name a file in a folder",
    "verify --json=": "--json cannot write '': Is a directory; name a file in a folder",
    "verify --html .": "--html cannot write '.': Is a directory; name a file in a folder that exists",
    "verify --html no/where.html": "--html cannot write 'no/where.html': No such file or directory; name a file in a",
    "verify --log tensorbord:x": "--log is 'tensorbord:x'; give tensorboard:DIR or wandb:PROJECT",
    "verify --log tensorboard:mine.py": "--log cannot write into 'mine.py': File exists; name a folder that may be",
    "curves --iterations 0": "argument --iterations: 0 is below 1",
    "curves --iterations 100001": "iterations is 100001; it must be at most 100000",
    "curves --seed=-1": "seed is -1; it must be in [0, 20000)",
    "curves nowhere:X": "the target 'nowhere:X' does not import: ModuleNotFoundError",
    "curves --text gone.txt": "--text cannot read 'gone.txt': No such file or directory; name a file of text",
    "curves --text /dev/null": "--text '/dev/null' has 0 bytes; name a file of at least 1000",
    "curves --out mine.py": "--out cannot write into 'mine.py': File exists; name a folder that may be written",
    "curves --out mine.py/x": "--out cannot write into 'mine.py/x': Not a directory; name a folder that may be written",
    "curves --model mine:narrow": "--model mine:narrow cannot be trained: IndexError: Target ",
    "replay": "the following arguments are required: FILE; see 'inbackward replay --help'",
    "replay gone.json": "cannot read 'gone.json': No such file or directory; name a file that a failing run saved in",
    "replay .": "cannot read '.': Is a directory; name a file that a failing run saved in .inbackward/",
    "replay mine.py": "mine.py: not a JSON document: ",
    "requirements plian": "the command line names no requirement 'plian'; did you mean 'plain'?",
    "requirements plain@ddp": "the command line names 'plain@ddp'; give the id alone",
    "requirements qqqq": "the command line names no requirement 'qqqq'; see 'inbackward requirements'",
}


@pytest.mark.parametrize(("line", "said"), CASES.items(), ids=[line or "nothing" for line in CASES])
def test_one_line(command, project, monkeypatch, line, said):
    monkeypatch.setattr(Suite, "judge", lambda *_: pytest.fail("it ran before the input was checked"))
    ran = command(*line.split())
    assert (ran.status, ran.out) == (2, "")
    assert ran.line.startswith(said)
    assert [p.name for p in project.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("1 +", "SyntaxError: invalid syntax"),
        ("raise KeyError('config')", "KeyError: 'config'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ],
)
def test_a_module_that_fails_to_import(command, project, source, said):
    (project / "failing.py").write_text(source)
    ran = command("verify", "failing:X")
    assert ran.status == 2
    assert ran.line.startswith(f"the target 'failing:X' does not import: {said}")


def test_no_gpu_here(command, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ran = command("verify", "--device", "cuda")
    assert ran.status == 2
    assert ran.line == "device is 'cuda', but torch sees no GPU here; run with device cpu"


def test_a_missing_extra(command, project, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(Suite, "judge", lambda *_: pytest.fail("it ran before the extra was looked for"))
    ran = command("verify", "--html", "report.html")
    assert ran.status == 2
    assert ran.line == "--html needs matplotlib, which is not installed; run pip install 'inbackward[plots]'"
    assert not (project / "report.html").exists()


def test_a_file_that_may_not_be_written(command, project, monkeypatch):
    (project / "kept.json").write_text("{}")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # file modes do not stop everyone who runs tests
    ran = command("verify", "--json", "kept.json")
    assert ran.status == 2
    assert ran.line.startswith("--json cannot write 'kept.json': Permission denied; name a file")
    assert (project / "kept.json").read_text() == "{}"
