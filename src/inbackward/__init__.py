"""Does training with the optimizer stepping inside ``loss.backward()`` give the same numbers as the usual loop?

The public names load on first use (PEP 562), so that ``import inbackward`` costs no import of torch.

PYTEST_DONT_REWRITE: pytest would warn where the package was imported before its plugin is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inbackward.optimizer import OptimizerInBackward as OptimizerInBackward
    from inbackward.scenario import Scenario as Scenario
    from inbackward.training import Implementation as Implementation
    from inbackward.verification import diagnose as diagnose
    from inbackward.verification import verify as verify

__version__ = "0.1.0"
__all__ = ["Implementation", "OptimizerInBackward", "Scenario", "__version__", "diagnose", "verify"]

_HOMES = {
    "Implementation": "inbackward.training",
    "OptimizerInBackward": "inbackward.optimizer",
    "Scenario": "inbackward.scenario",
    "diagnose": "inbackward.verification",
    "verify": "inbackward.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
