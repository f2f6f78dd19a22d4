"""An optimizer that shows what belongs to the one it wraps as its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from inbackward.optimizer.checkpoint import check_fits


class OptimizerWrapper(Optimizer):
    """Groups, state, defaults and state dict are those of the wrapped optimizer, and so is each public attribute.

    So schedulers and edits of a group act at once, and a checkpoint of either loads into the other.
    """

    _inner: Optimizer

    def _settle(self) -> None:
        """Bring the wrapped optimizer up to date: it is about to be read, or its state to be replaced."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._inner.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        return self._inner.state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self._inner.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        return self._inner.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self._inner.defaults = defaults

    def state_dict(self) -> dict[str, Any]:
        """The state dict of the wrapped optimizer, in its own layout."""
        self._settle()
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        state_dict = self._inner.state_dict()
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the wrapped optimizer, or of another wrapper over it.

        Raises:
            TypeError: it is no dict.
            ValueError: it does not fit, where that can be told; nothing has changed then.
        """
        if not isinstance(state_dict, dict):
            raise TypeError(f"state_dict must be a dict, as state_dict() returns it, got a {type(state_dict).__name__}")
        state_dict = state_dict.copy()
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        check_fits(self._inner, state_dict)
        self._settle()
        self._inner.load_state_dict(state_dict)
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_inner(name):
            setattr(self._inner, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_inner(name):
            delattr(self._inner, name)
        else:
            super().__delattr__(name)

    def _is_inner(self, name: str) -> bool:
        own = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        return not own and "_inner" in vars(self) and hasattr(self._inner, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._inner, name)
