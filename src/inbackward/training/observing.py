"""Reading an optimizer as loggers, debuggers and checkpointers do."""

from __future__ import annotations

from torch.optim import Optimizer

from inbackward.scenario import Observe
from inbackward.training.driver import Driver
from inbackward.training.setting import NotRun
from inbackward.training.shapes import optimizers_in


def observe(driver: Driver, event: Observe) -> None:
    """Read what the event names.

    Raises:
        NotRun: the handle is no ``Optimizer`` and has no DCP dictionary to read.
    """
    for what in event.what:
        if what == "state":
            for optimizer in optimizers_in(driver.shape()) or []:
                for parameter in driver.setting.names:
                    optimizer.state.get(parameter)
        elif what == "groups":
            for optimizer in optimizers_in(driver.shape()) or []:
                repr(optimizer.param_groups)
        elif what == "state-dict":
            driver.state_dict()
        elif not isinstance(driver.handle, Optimizer):
            kind = type(driver.handle).__name__
            raise NotRun(f"{kind} is no Optimizer, so get_optimizer_state_dict does not take it")
        else:
            from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

            get_optimizer_state_dict(driver.setting.model, driver.handle)
