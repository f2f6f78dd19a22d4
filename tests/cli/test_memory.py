"""``inbackward memory``: what it prints and writes of a person's own model, and one line for what is wrong."""

import json
import sys

import pytest
import torch.distributed as dist

from inbackward.cli import main
from inbackward.measure.setup import STRATEGIES

MODELS = """
from torch import nn


def good():
    return nn.Sequential(nn.Embedding(300, 8), nn.Linear(8, 8), nn.Linear(8, 300))


def reads():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = good()

        def forward(self, x):
            y = self.inner(x)
            return y * 2 if y.sum().item() > 0 else y

    return Reads()


class Alone(nn.Module):
    # two modules, and no list of them

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Embedding(300, 8), nn.Linear(8, 300)

    def forward(self, x):
        return self.outer(self.inner(x))


class Head(nn.Module):
    # layers that are all frozen

    def __init__(self):
        super().__init__()
        print("hello from the model")
        self.layers, self.outer = good()[:2].requires_grad_(False), nn.Linear(8, 300)

    def forward(self, x):
        return self.outer(self.layers(x))


def frozen():
    return good().requires_grad_(False)


def nothing():
    return None


def exits():
    raise SystemExit(3)


def narrow():
    return nn.Linear(4, 4)


def interrupted():
    raise KeyboardInterrupt
"""
SIMULATED = "cannot be simulated:"
CASES = {
    "--model llama2-7bb": "--model names no model 'llama2-7bb'; did you mean 'llama2-7b'?",
    "--model qqqq": "--model names no model 'qqqq'; choose from llama2-7b, llama2-13b, ",
    "--model nowhere:X": "--model 'nowhere:X' does not import: ModuleNotFoundError",
    "--model models:god": "--model 'models:god': module models has no attribute 'god'; did you mean 'good'?",
    "--model models:MODULE": "--model 'models:MODULE': module models has no attribute 'MODULE'",
    "--model mine:number": "--model mine:number is 3; name a function that returns a module",
    "--model mine:raising": f"mine:raising {SIMULATED} RuntimeError: no weights here",
    "--model models:nothing": f"models:nothing {SIMULATED} TypeError: the model is None; build must return",
    "--model models:exits": f"models:exits {SIMULATED} SystemExit: 3",
    "--model models:frozen": f"models:frozen {SIMULATED} ValueError: no parameter of the Sequential requires a",
    "--model models:narrow": f"models:narrow {SIMULATED} RuntimeError: a and b must have same reduction dim",
    "--model models:reads": f"models:reads {SIMULATED} DataDependentOutputException: aten._local_scalar_dense.default; "
    "it reads a number, and simulated tensors have none: inbackward.measure.observe_memory runs for real",
    "mine:Raises --model models:good": f"models:good, stepped by mine:Raises, {SIMULATED} ValueError: not today",
    "--dtype int4": "argument --dtype: invalid choice: 'int4' (choose from ",
    "--world-size 0": "argument --world-size: 0 is below 1; see 'inbackward memory --help'",
    "--strategy fsdp2 --world-size 4097": "the world size is 4097; it must be at most 4096",
    "--strategy hsdp --world-size 12": "the world size 12 is no multiple of the 8 ranks that share the parameters; "
    "choose another shard size",
    "--strategy tensor-parallel": "no memory is simulated under 'tensor-parallel'; choose from single, ddp, fs",
    "--model gpt2 --sequence-length 1025": "--sequence-length is 1025, and gpt2 has 1024 positions; give no more",
    "--batch-size -1": "argument --batch-size: -1 is below 1",
    "--micro-batches many": "argument --micro-batches: 'many' is not a whole number",
    "--optimizer AdmW": "--optimizer names no optimizer 'AdmW' of torch.optim; did you mean 'AdamW'?",
    "--optimizer mine:number": "--optimizer mine:number is 3; name an optimizer class",
    "mine:number": "the target mine:number: 3 is no implementation of an optimizer in backward",
    "--json no/where.json": "--json cannot write 'no/where.json': No such file or directory; name a file in a folder",
    "--plot no/where.png": "--plot cannot write 'no/where.png': No such file or directory; name a file in a folder",
    "--plot memory.gif": "--plot is 'memory.gif'; name a file that ends in .png, .svg, .pdf",
}


@pytest.fixture
def models(project):
    (project / "models.py").write_text(MODELS)
    return project


@pytest.mark.parametrize(("line", "said"), CASES.items(), ids=list(CASES))
def test_one_line(command, models, line, said):
    ran = command("memory", *line.split())
    assert (ran.status, ran.out) == (2, "")
    assert ran.line.startswith(said)
    assert {p.name for p in models.iterdir()} - {"__pycache__"} == {"mine.py", "models.py"}


def test_a_plot_without_matplotlib(command, models, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = command("memory", "--plot", "memory.png")
    assert (ran.status, ran.out) == (2, "")
    assert ran.line == "--plot needs matplotlib, which is not installed; run pip install 'inbackward[plots]'"


def test_a_model_and_an_implementation_of_ones_own(command, models):
    line = "memory mine:keeps --model models:good --strategy fsdp2 --world-size 2 --micro-batches 2 --json m.json"
    ran = command(*line.split(), "--plot", "m.pdf")
    assert ran.status == 0, ran
    assert ran.out.splitlines()[:2] == [
        "models:good in bf16, AdamW, fsdp2 on 2 ranks, 2 micro-batches of 1 x 2048 tokens, with "
        "activation checkpointing",
        "gradients of a layer: 0.00 MiB a rank, 3 layers",
    ]
    assert "saved: 0.00 MiB a rank, 0.0% of the peak" in ran.out
    figures = json.loads((models / "m.json").read_text())
    assert figures["plain"] == figures["in_backward"]  # it keeps its gradients
    assert (models / "m.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("model", "layers"),
    {
        "Alone": "no layers: they are the members of the outermost ModuleList",
        "Head": "gradients of a layer: 0.00 MiB a rank, 2 layers",
    }.items(),
)
def test_a_model_whose_layers_have_no_gradients(command, models, model, layers):
    ran = command("memory", "--model", f"models:{model}", "--dtype", "fp32", "--no-activation-checkpointing")
    assert ran.status == 0, ran
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"models:{model} in fp32, ")
    assert lines[1] == layers
    assert lines[-2].startswith("the peak lies at: ")
    assert lines[-2].endswith(", plain")  # how many layers' gradients that is cannot be said


def test_interrupted(command, models):
    ran = command("memory", "--model", "models:interrupted", "--strategy", "ddp", "--json", "m.json")
    assert (ran.status, ran.out) == (130, "")
    assert not dist.is_initialized()
    assert not (models / "m.json").exists()


def test_the_help_names_the_strategies(capsys):
    with pytest.raises(SystemExit):
        main(["memory", "--help"])
    assert ", ".join(STRATEGIES[:-1]) + f" or {STRATEGIES[-1]}" in " ".join(capsys.readouterr().out.split())
