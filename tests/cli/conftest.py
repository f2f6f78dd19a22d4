"""A project in a temporary folder, with implementations right and wrong, and the command run in it."""

import sys
import textwrap
from dataclasses import dataclass

import pytest

from inbackward.cli import main

# frozen: the scheduler is given an outer optimizer, the inner ones keep the constructor's lr. keeps: the plain
# optimizer in step(), whose only fault is that gradients live on. Hot: an lr 1 % too large. Crash: it loads no
# checkpoint. Coupled: an optimizer that must not be stepped by the parameter.
MINE = """
import torch
from dataclasses import replace
from torch import nn
from inbackward import Implementation, OptimizerInBackward


class Inner:
    def __init__(self, groups, optimizer_cls, kwargs):
        self.outer = optimizer_cls([dict(g) for g in groups], **kwargs)
        self.inner = {p: optimizer_cls([{**g, "params": [p]}], **kwargs) for g in groups for p in g["params"]}
        for p in self.inner:
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.update)

    def update(self, p):
        self.inner[p].step()
        self.inner[p].zero_grad(set_to_none=True)


frozen = Implementation(
    build=lambda model, groups, cls, kwargs: Inner(groups, cls, kwargs),
    state=lambda handle, model: handle.inner,
    scheduler=lambda handle, make: make(handle.outer),
    name="frozen lr",
)
keeps = Implementation(build=lambda model, groups, cls, kwargs: cls(groups, **kwargs), name="keeps gradients")
tracked = replace(keeps, expected_failures={"gradient-freed": "bug 12"})
declared = replace(keeps, unsupported={"gradient-freed": "freed by zero_grad()"})
stale = Implementation.drop_in(OptimizerInBackward, unsupported={"rng": "never tried"})
no_longer = Implementation.drop_in(OptimizerInBackward, expected_failures={"rng": "bug 13"})
typo = Implementation.drop_in(OptimizerInBackward, unsupported={"lr-shedule": "no"})


class Hot(OptimizerInBackward):
    def __init__(self, params, optimizer_cls, **kwargs):
        super().__init__(params, optimizer_cls, **{**kwargs, "lr": kwargs["lr"] * 1.01})


class Crash(OptimizerInBackward):
    def load_state_dict(self, state_dict):
        raise KeyError("momentum_buffer")


class Talks(OptimizerInBackward):
    def __init__(self, *args, **kwargs):
        print("hello from the implementation")
        super().__init__(*args, **kwargs)


class Right(OptimizerInBackward):
    pass


class Leaves(OptimizerInBackward):
    def zero_grad(self, set_to_none=True):
        __import__("os")._exit(3)


class Raises(OptimizerInBackward):
    def __init__(self, *args, **kwargs):
        raise ValueError("not today")


class Later(OptimizerInBackward):
    def step(self, closure=None):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps > 3:
            raise ValueError("not today")
        return super().step(closure)


class Unclosable(OptimizerInBackward):
    def close(self):
        super().close()
        raise ValueError("it is stuck")


class Coupled(torch.optim.SGD):
    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([g.pow(2).sum() for g in grads]).sum().sqrt()
        for g in grads:
            g.div_(norm)
        return super().step(closure)


class CoupledAtLast(Coupled):
    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure) if self.calls > 3 else torch.optim.SGD.step(self, closure)


class NeedsLr(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr)


def small():
    return nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))


def dropping():
    return nn.Sequential(nn.Embedding(256, 8), nn.Dropout(0.5), nn.Linear(8, 256))


def raising():
    raise RuntimeError("no weights here")


def exits():
    raise SystemExit(0)


def infinite():
    model = small()
    model[0].weight.data.fill_(float("inf"))
    return model


class Exits(torch.optim.SGD):
    def __init__(self, params, lr=0.1):
        raise SystemExit(0)


def narrow():
    return nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 7))


number = 3
"""


@dataclass(frozen=True)
class Ran:
    """What the command did: its exit status and what it printed."""

    status: int
    out: str
    err: str

    @property
    def line(self):
        """The one line on stderr, after the program's name."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("inbackward: error: "), self.err
        return lines[0].removeprefix("inbackward: error: ")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current directory: a folder that holds ``mine.py``."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def command(project, capsys):
    """Run ``inbackward`` with arguments, in this process."""

    def run(*arguments):
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as ended:  # argparse leaves this way
            status = ended.code
        return Ran(status, *capsys.readouterr())

    return run
