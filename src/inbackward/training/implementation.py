"""``Implementation``: the thing under test, and what it says of itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward.wording import one_line


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a training loop knows when it calls ``backward``.

    Attributes:
        groups: the hyperparameters now, one mapping a group (schedules and hand edits applied), without parameters.
        last: this is the last micro-batch of the iteration.
        max_norm: clip the global gradient norm to this, or ``None``.
        error_if_nonfinite: raise where that norm is infinite or NaN, as ``clip_grad_norm_`` does if told so.
        scaler: the ``torch.amp.GradScaler`` in use, or ``None``.
    """

    groups: tuple[Mapping[str, Any], ...]
    last: bool = True
    max_norm: float | None = None
    error_if_nonfinite: bool = False
    scaler: Any = None


class ParameterGroups(list[dict[str, Any]]):
    """Group dicts whose ``"params"`` are plain parameters; ``named`` asks a drop-in class to be given names too."""

    named: bool = False


@dataclass(frozen=True)
class DropIn:
    """The ``build`` of a class called as ``cls(params, optimizer_cls, **kwargs)``."""

    cls: Callable[..., Any]

    def __call__(self, model: nn.Module, groups: ParameterGroups, optimizer_cls: Any, kwargs: dict[str, Any]) -> Any:
        names = {p: n for n, p in model.named_parameters()} if groups.named else {}
        given = [{**g, "params": [(names[p], p) for p in g["params"]] if names else g["params"]} for g in groups]
        params: Iterator[Any] | list[dict[str, Any]] = given
        if len(given) == 1 and set(given[0]) == {"params"} and given[0]["params"]:
            params = iter(given[0]["params"])
        return self.cls(params, optimizer_cls, **kwargs)


@dataclass(frozen=True)
class OneAtATime:
    """The ``build`` of the canonical class without buckets: small models may fit into one, and hide what couples."""

    build: Callable[[nn.Module, ParameterGroups, Any, dict[str, Any]], Any]

    def __call__(self, model: nn.Module, groups: ParameterGroups, optimizer_cls: Any, kwargs: dict[str, Any]) -> Any:
        return self.build(model, groups, optimizer_cls, {**kwargs, "bucket_bytes": 0})


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """An optimizer-in-backward implementation under test. Everything but ``build`` has a default.

    Attributes:
        build: ``(model, param_groups, optimizer_cls, kwargs) -> handle``. ``model`` is final; ``param_groups`` is a
            list of dicts, ``[{"params": [...]}]`` for one plain group.
        backward: ``(handle, loss, moment) -> total_norm | None``. Default: ``loss.backward()``. It does all that
            ``moment`` tells; with a scaler also ``scaler.step`` and ``scaler.update`` after the last micro-batch. One
            that takes ``**arguments`` is given those of ``loss.backward``, in scenarios that have any.
        pause: ``(handle) -> context manager`` in which a backward does not train. Default: there is none.
        scheduler: ``(handle, make) -> scheduler | None``. Default: ``make(handle)``. Where it returns ``None``, or the
            handle is no ``Optimizer``, the schedule runs on a carrier and reaches ``moment.groups``.
        optimizers: classes, or ``(class, kwargs)``, that serve as the reference. ``None``: those of ``torch.optim``.
        state: ``(handle, model)`` to an ``Optimizer``, ``{parameter: Optimizer}``, ``{name: Optimizer}``, a list of
            optimizers, or ``{parameter name: {state name: tensor}}``. Default: the handle.
        hyperparameters: ``(handle) -> {parameter name: {name: value}}`` used by the last update. Default: read from
            the optimizers that ``state`` shows.
        state_dict: ``(handle) -> state dict``, only if it is not a method of the handle.
        load_state_dict: ``(handle, state_dict)``, likewise.
        close: ``(handle, model)``, likewise, and optional.
        wrap: ``(model, strategy, mesh) -> model``, for a framework's own parallelism: the strategy's name and the
            ``DeviceMesh`` over all ranks. Default: DDP, ``fully_shard`` of every layer, ``parallelize_module``.
        unsupported: requirement id to the reason why it is not claimed. Its events are left out of other scenarios.
        expected_failures: requirement id to a known defect.
        refusals: further exception types that count as refusals.
        name: shown in reports.

    Raises:
        TypeError: a field that must be callable is not, or ``unsupported`` has no reasons.
    """

    build: Callable[[nn.Module, ParameterGroups, Any, dict[str, Any]], Any]
    backward: Callable[..., Tensor | None] | None = None
    pause: Callable[[Any], AbstractContextManager[Any]] | None = None
    scheduler: Callable[[Any, Callable[[Any], Any]], Any] | None = None
    optimizers: Sequence[Any] | None = None
    state: Callable[[Any, nn.Module], Any] | None = None
    hyperparameters: Callable[[Any], Mapping[str, Mapping[str, Any]]] | None = None
    state_dict: Callable[[Any], Any] | None = None
    load_state_dict: Callable[[Any, Any], Any] | None = None
    close: Callable[[Any, nn.Module], Any] | None = None
    wrap: Callable[[nn.Module, str, Any], nn.Module] | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict)
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[type[BaseException], ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.build):
            raise TypeError(f"Implementation.build is {self.build!r}; give a function (model, groups, cls, kwargs)")
        for name in (
            "backward",
            "pause",
            "scheduler",
            "state",
            "hyperparameters",
            "state_dict",
            "load_state_dict",
            "close",
            "wrap",
        ):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"Implementation.{name} is {value!r}; give a function or leave it out")
        for name in ("unsupported", "expected_failures"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(r, str) and r.strip() for r in value.values()):
                raise TypeError(f"Implementation.{name} is {value!r}; give {{requirement id: reason}}")
            object.__setattr__(self, name, {id: one_line(reason) for id, reason in value.items()})
        object.__setattr__(self, "name", one_line(str(self.name)))
        if isinstance(self.optimizers, type) or callable(self.optimizers):
            raise TypeError(f"Implementation.optimizers is {self.optimizers!r}; give a list of classes")

    @property
    def reference_optimizers(self) -> list[tuple[Any, dict[str, Any]]] | None:
        """``optimizers`` as pairs of class and keyword arguments."""
        if self.optimizers is None:
            return None
        return [(o[0], dict(o[1])) if isinstance(o, tuple) else (o, {}) for o in self.optimizers]

    @property
    def takes_arguments(self) -> bool:
        """Whether ``backward`` hands ``retain_graph`` and ``inputs`` on to ``loss.backward``."""
        if self.backward is None:
            return True
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.backward).parameters.values())

    @classmethod
    def drop_in(cls, implementation_cls: Callable[..., Any], **more: Any) -> Implementation:
        """Wrap anything called as ``implementation_cls(params, optimizer_cls, **kwargs)``.

        It is given an iterator of parameters when there is one plain group, group dicts when there are several, and
        ``(name, parameter)`` pairs where the scenario asks for named parameters.
        """
        more.setdefault("name", getattr(implementation_cls, "__name__", repr(implementation_cls)))
        return cls(build=DropIn(implementation_cls), **more)

    @classmethod
    def of_optimizer(cls, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> Implementation:
        """The canonical ``OptimizerInBackward`` over an author's own optimizer; that optimizer is the reference.

        It answers whether the optimizer may be stepped one parameter at a time.
        """
        from inbackward.optimizer import OptimizerInBackward

        base = own_implementation(OptimizerInBackward) or cls.drop_in(OptimizerInBackward)
        values = {f.name: getattr(base, f.name) for f in fields(base)}
        label = getattr(optimizer_cls, "__name__", repr(optimizer_cls))
        values["build"] = OneAtATime(base.build)
        return cls(**{**values, "optimizers": [(optimizer_cls, kwargs)], "name": f"OptimizerInBackward over {label}"})


def own_implementation(target: Any) -> Implementation | None:
    """The ``Implementation`` that a class carries as its attribute ``optimizer_in_backward``, if any.

    One that is inherited as it stands builds the base class; a descriptor may build the class that is asked.
    """
    carried = getattr(target, "optimizer_in_backward", None)
    inherited = isinstance(target, type) and "optimizer_in_backward" not in vars(target)
    if inherited and isinstance(inspect.getattr_static(target, "optimizer_in_backward", None), Implementation):
        return None
    return carried if isinstance(carried, Implementation) else None


def as_implementation(target: Any) -> Implementation:
    """The ``Implementation`` that a fixture or a command line meant by ``target``.

    Raises:
        TypeError: ``target`` cannot be called as ``target(params, optimizer_cls, **kwargs)``; one line with the mend.
    """
    if isinstance(target, Implementation):
        return target
    carried = own_implementation(target)
    if carried is not None:
        return carried
    label = getattr(target, "__qualname__", repr(target))
    mend = (
        "return Implementation.drop_in(...) for a class called as cls(params, optimizer_cls, **kwargs), "
        "Implementation.of_optimizer(...) for a plain optimizer, or an Implementation"
    )
    if not callable(target):
        raise TypeError(f"{label} is no implementation of an optimizer in backward; {mend}")
    try:
        inspect.signature(target).bind(object(), object(), lr=0.1)
    except TypeError:
        raise TypeError(f"{label} takes no (params, optimizer_cls, **kwargs); {mend}") from None
    except ValueError:
        pass  # a builtin without a signature: the first scenario will tell
    return Implementation.drop_in(target)
