"""`OptimizerInBackward`: any per-parameter optimizer of torch, stepping inside `loss.backward()`."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from inbackward.optimizer.building import build, check_torch
from inbackward.optimizer.clipping import Clipping
from inbackward.optimizer.hook import StepHook, can_carry_hook, step_hooks, takes_part, within_another_backward
from inbackward.optimizer.own_implementation import OwnImplementation
from inbackward.optimizer.partial_step import PartialStep
from inbackward.optimizer.ready import AtEnd, Ready, Use
from inbackward.optimizer.reduction import Reduction, hint_on_ranks
from inbackward.optimizer.rehearsal import Rehearsal, is_rehearsal
from inbackward.optimizer.scaling import Scaling
from inbackward.optimizer.two_passes import Passes
from inbackward.optimizer.wrapper import OptimizerWrapper


class OptimizerInBackward(OptimizerWrapper):
    """A drop-in for a torch optimizer that needs no memory for gradients: each is used and freed within `backward()`.

    The usual loop holds the gradients of all parameters at once, between `backward()` and `step()`. Here a parameter is
    updated as soon as its own gradient is final, and the gradient is set to None, so that only a few exist at a time.
    The numbers are those of the usual loop, bit for bit, for every optimizer that treats its parameters separately.

        optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
        for batch in data:
            model(batch).backward()  # updates the parameters
            optimizer.step()  # ends the iteration; nothing is left to update
            scheduler.step()
            optimizer.zero_grad()

    `backward()` updates and `step()` ends the iteration, and must be called: a second gradient for a parameter that has
    been updated since the last `step()` is an error, raised before anything of that second backward is used. So a loop
    with several backwards a step, written for a plain optimizer, is not silently trained in another way. Put all
    backwards but the last into `with optimizer.no_step():`. Only `zero_grad()` after a backward that raised, and
    `load_state_dict()`, begin anew without a `step()`.

    One optimizer of the wrapped class does the work: `param_groups`, `state`, `defaults`, `state_dict()` and whatever
    else the wrapped class offers are its own. So schedulers and edits of a group act at once, and a checkpoint of the
    plain optimizer loads here and the reverse. What the wrapped class writes into its groups, or a number that it keeps
    as an attribute (a counter), is seen there from `step()` on, and groups without a gradient count as well, as theirs
    do.

    A few parameters are updated together, a bucket, as that is faster: what waits never has more bytes of gradients
    than the largest gradient, so at most two of that size exist at once. What waits when a backward raises is used.

    Keep a reference to the optimizer: deleting it ends the updates, as `close()` does. A new one over exactly the same
    parameters takes over.

    A gradient that exists when `step()` is called is used then, as the plain optimizer would: one that was set by hand,
    that of a parameter put into a group by hand, and those that come from a backward within the backward. There
    (reentrant activation checkpointing) nobody can tell whether another segment will add to the gradient, so it waits,
    and no memory is saved: prefer `checkpoint(..., use_reentrant=False)`.

    Args:
        params (iterable of Tensor, of (str, Tensor) or of dict): what the wrapped class takes as its `params`.
        optimizer_cls (type[Optimizer] or callable): the class to wrap, or a callable that builds one from `params`.
        bucket_bytes (int, optional): bytes of gradients that are used together. Default: those of the largest
            parameter. 0 updates each parameter alone, which is slower and holds one gradient at a time.
        **kwargs: passed on to `optimizer_cls`.

    Raises:
        TypeError: `optimizer_cls` does not build a `torch.optim.Optimizer`, or `params` is a module.
        ValueError: the optimizer cannot step inside backward (its `step` needs a closure, it is differentiable, or it
            updates three small parameters otherwise one after the other than all at once), or some of the parameters,
            but not all, belong to another `OptimizerInBackward` that is alive.
        RuntimeError: torch is older than 2.6. Later, from `step(closure)`; and from `backward()`, at a second gradient
            since the last `step()`, or if the wrapped optimizer turns out to couple its parameters through its groups.

    Sources: the PyTorch tutorial "How to save memory by fusing the optimizer step into the backward pass"; the idea of
    updating during the backward pass is from LOMO (arXiv 2306.09782).
    """

    closed: bool
    optimizer_in_backward = OwnImplementation()

    def __init__(
        self,
        params: ParamsT,
        optimizer_cls: Callable[..., Optimizer],
        *,
        bucket_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_torch(torch.__version__)
        inner, way = build(params, optimizer_cls, kwargs)
        self.__setstate__({"_inner": inner, "closed": False, "_bucket_bytes": bucket_bytes, "_way": way})

    # How an instance comes to life: built, copied and unpickled ones alike, each with hooks on the parameters at hand.

    def __getstate__(self) -> dict[str, Any]:
        self._rehearsal.forget()
        self._settle()
        return {name: getattr(self, name) for name in ("_inner", "closed", "_bucket_bytes", "_way")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_inner" not in state:  # what Optimizer.load_state_dict sets, if it is called on this object directly
            self._inner.__setstate__(state)
            return
        own = set(state["_inner"].defaults)
        super().__setstate__(state)  # not Optimizer.__init__, which would empty the state that Adagrad is built with
        for name in self.defaults.keys() - own:  # which torch gives to whatever comes to life so
            del self.defaults[name]
        self._partial = PartialStep(self._inner, self._way)
        self._rehearsal = Rehearsal()
        self._lock = threading.RLock()  # autograd has one thread a device
        self._backwards: dict[int, Ready] = {}  # those that run now
        self._updated: dict[int, Tensor] = {}  # since the last step(), by id
        self._interrupted = self._keeps = self._kept = self._brought = self._one_pass = False
        self._use: Use | None = None
        self._claimed: list[Tensor] = []
        self._reductions: list[Reduction] = []  # of DDP modules
        self._hook = StepHook(self, OptimizerInBackward._accumulated)
        if not self.closed:
            self._claim()

    def _claim(self) -> None:
        """Put a hook on each parameter that has none of ours; refuse before anything is changed."""
        parameters = self._parameters()
        if len(parameters) == len(self._claimed) and all(map(is_, parameters, self._claimed)):
            return
        ours = {p for p in parameters if can_carry_hook(p)}
        fresh = [p for p in ours if self._hook not in step_hooks(p)]
        owned = {p: owner for p in fresh for hook in step_hooks(p) if (owner := hook.owner) is not None}
        others = set(owned.values())
        for other in others:
            if ours != {p for group in other.param_groups for p in group["params"] if can_carry_hook(p)}:
                raise ValueError(
                    f"{len(owned)} of the {len(ours)} parameters are already stepped by another OptimizerInBackward: "
                    "call its close() first, or give each optimizer parameters of its own"
                )
            warnings.warn(
                "a new OptimizerInBackward takes over the parameters of one that is still alive and starts with fresh "
                "state: call close() on the old one before",
                stacklevel=4,
            )
        for other in others:
            other.close()
        for p in fresh:
            for hook in step_hooks(p):
                hook.remove()  # its optimizer is dead
            self._hook.register(p)
        self._limit = max((p.nbytes for p in ours), default=0) if self._bucket_bytes is None else self._bucket_bytes
        if all(p in ours for p in parameters):  # else one may become able to carry a hook, as a lazy one does
            self._claimed = parameters

    def close(self) -> None:
        """Stop stepping, for good, and take the hooks off the parameters. Gradients stay from now on."""
        self.closed = True
        self._hook.remove()
        self._end_backwards()
        self._settle()

    # The backward.

    @contextmanager
    def no_step(self) -> Iterator[None]:
        """In this context `backward()` updates nothing and leaves its gradients, as in the usual loop.

        For the micro-batches before the last, whose gradients the last backward adds to and uses:

            for micro_batch in batch[:-1]:
                with optimizer.no_step():
                    loss_of(micro_batch).backward()
            loss_of(batch[-1]).backward()  # updates the parameters
            optimizer.step()

        And for a backward that must not train these parameters, as a generator's that flows through a discriminator;
        call `zero_grad()` after it, as for a plain optimizer. (To freeze them meanwhile saves their gradients.)
        """
        before, self._keeps, self._kept = self._keeps, True, True
        try:
            yield
        finally:
            self._keeps = before

    def backward(
        self,
        loss: Tensor,
        *,
        max_norm: float | None = None,
        max_norm_per_parameter: float | None = None,
        clip_value: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        scaler: torch.amp.GradScaler | None = None,
        **kwargs: Any,
    ) -> Tensor | None:
        """`loss.backward()` where the gradients are to be clipped, or scaled for fp16, before they are used.

        After a plain `loss.backward()` there are no gradients left that `clip_grad_norm_` or a `GradScaler` could see,
        so they are told here. The numbers are those of the usual loop, bit for bit (a fused kernel divides by the scale
        itself, so there the scale must be a power of two, as that of a GradScaler is unless it is told otherwise):

            optimizer.backward(loss, max_norm=1.0)  # loss.backward(); clip_grad_norm_(parameters, 1.0)
            optimizer.step()

            optimizer.backward(loss, max_norm=1.0, scaler=scaler)  # scaler.scale(loss).backward(); scaler.unscale_(...)
            scaler.step(optimizer)  # where a gradient has overflowed nothing was updated, and step() is not called
            scaler.update()

        `max_norm` and `scaler` need all gradients before the first update, and take **two backward passes** over the
        graph: the first measures each gradient and frees it, the second updates. No more gradients exist at once than
        without clipping, but activations live until the second pass, and its time is added: about a third of an
        iteration's. What acts in a backward acts twice: tensor hooks, recomputed segments (activation checkpointing),
        random numbers drawn in a custom backward. A custom function must not overwrite what it saved for its backward.

        After `no_step()`, where gradients exist already (or wait in `fully_shard`, without gradient sync), or where the
        graph allows no second pass (reentrant checkpointing, compiled with donated buffers), one pass keeps all
        gradients until `step()`: the numbers are the same, no memory is saved, and a warning says so once where
        `no_step()` is not the reason. The other ways to clip always take one pass and no memory.

        In `no_step()` the loss is scaled and nothing is clipped: that is for the last backward to do, for the sum.

        Args:
            loss: what `backward()` is called on, not scaled.
            max_norm: clip the norm over all parameters of this optimizer, in the order of its groups, to this value:
                `torch.nn.utils.clip_grad_norm_`.
            max_norm_per_parameter: clip the norm of each parameter's gradient by itself, another thing than the above.
            clip_value: clip each element of the gradients: `torch.nn.utils.clip_grad_value_`.
            norm_type, error_if_nonfinite: as in `clip_grad_norm_`; nothing has been updated when it raises.
            scaler: unscale the gradients, and update only if all are finite; call its `step` and `update` after this.
            **kwargs: passed on to `loss.backward()`.

        Returns:
            The total norm before clipping, a scalar, where `max_norm` is given.

        Raises:
            ValueError: more than one way to clip is given.
            RuntimeError: the total norm is not finite, and `error_if_nonfinite`; or the second pass brings another
                gradient than the first, as it does where `fully_shard` holds gradients back of which it was not told.

        Source: the two passes are from LOMO (arXiv 2306.09782).
        """
        clipping = Clipping(max_norm, norm_type, error_if_nonfinite, max_norm_per_parameter, clip_value)
        scaling = Scaling(scaler) if scaler is not None and scaler.is_enabled() else None
        if scaler is not None:
            loss = scaler.scale(loss)
        if self._keeps or self.closed:
            loss.backward(**kwargs)  # type: ignore[no-untyped-call]
            return None
        return Passes(self, clipping, scaling).run(loss, kwargs)

    @contextmanager
    def _using(self, use: Use) -> Iterator[None]:
        """Hand gradients to `use` in place of updating with them."""
        self._use = use
        try:
            yield
        finally:
            self._use = None

    def _accumulated(self, p: Tensor) -> None:
        """A gradient is in place. It is final, unless a reduction over ranks comes after it."""
        if not self._reductions or not any(p in reduction.parameters for reduction in self._reductions):
            self._update(p)

    def _reduced(self, parameters: list[Tensor]) -> None:
        """Use gradients that a reduction over ranks has made final: at once, since they take no memory of their own."""
        with self._lock:
            self._rehearsal.forget()
            self._brought = True
            own = [p for p in parameters if self._hook in step_hooks(p)]  # a bucket may hold others' too
            for p in own:
                if id(p) in self._updated:
                    raise self._second(p)
            if own and not self._keeps:
                self._use_up(own)

    def _update(self, p: Tensor) -> None:
        """Use the gradient of `p`, which is final: now, or with the next ones, at the latest when this backward ends.

        The hooks come here, and so may whoever else knows that a gradient is final.
        """
        with self._lock:
            ready = self._backwards.get(torch._C._current_graph_task_id()) or self._enter()
            if id(p) in self._updated:
                raise self._second(p)
            if self._keeps or ready.nested:
                return  # nested, pytorch#81296: a weight shared by two segments comes here once a segment
            ready.add(p)
            if not self._reductions and ready.task >= 0:
                self._hook.ready = ready

    def _enter(self) -> Ready:
        """A backward has brought its first gradient. Refuse one that would update a parameter twice."""
        self._rehearsal.forget()
        self._brought = True
        task = torch._C._current_graph_task_id()
        if task < 0:  # compiled autograd runs the hooks outside of any backward
            return Ready(self._use_up, 0, self._lock, task)
        nested = within_another_backward()
        if not nested:  # else the parameters were updated by the backward around it
            for p in self._updated.values():
                if takes_part(p):
                    raise self._second(p)
        ready = self._backwards[task] = Ready(self._use_up, self._limit, self._lock, task, nested)
        AtEnd(partial(self._leave, task))
        return ready

    def _use_up(self, parameters: list[Tensor]) -> None:
        """Update with their gradients, or do what they are wanted for instead."""
        if not self._updated.keys().isdisjoint(map(id, parameters)):
            raise self._second(next(p for p in parameters if id(p) in self._updated))
        (self._use or self._apply)(parameters)

    def _leave(self, task: int, failed: bool) -> None:
        with self._lock:
            ready = self._backwards.pop(task, None)
            self._hook.ready = None
            self._interrupted |= failed
            if ready is not None:
                ready.flush()

    def _end_backwards(self) -> None:
        """End those that have not told of their end, as one does only later whose error came on another thread."""
        for task in list(self._backwards):
            self._leave(task, failed=True)

    def _apply(self, parameters: list[Tensor]) -> None:
        # Before, as an optimizer that raises may have updated some of them.
        self._updated.update(zip(map(id, parameters), parameters))
        self._partial.step(parameters)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _left(self) -> list[Tensor]:
        """The parameters that have a gradient now, each once."""
        return list(dict.fromkeys([p for p in self._parameters() if p.grad is not None]))

    def _second(self, p: Tensor) -> RuntimeError:
        return RuntimeError(
            f"{self._partial.place_of(p)} has been updated since the last step() and gets a second gradient: call "
            "optimizer.step() after the backward() of each iteration, and put the backwards that come before an "
            "iteration's last one into `with optimizer.no_step():`" + hint_on_ranks()
        )

    def register_ddp(self, module: DistributedDataParallel) -> None:
        """Step the parameters of `module` after its all-reduce, inside `backward()`, with the gradients of all ranks.

            model = DistributedDataParallel(model)
            optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, lr=1e-3)
            optimizer.register_ddp(model)

        This takes the module's communication hook, whose arithmetic is that of DDP without one. Several optimizers may
        share a module, and a new one takes the place of one that is closed; a deep copy has to be told again. DDP's
        buckets, which hold as many bytes as all gradients, stay; what is saved are the gradients beside them.

        Raises:
            RuntimeError: from DDP, if the module has another communication hook already.
        """
        reduction = Reduction.of(module)
        reduction.join(self, OptimizerInBackward._reduced)
        if reduction not in self._reductions:
            self._reductions.append(reduction)

    # The loop.

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """End the iteration, whose parameters were updated inside `backward()`; a gradient left over is used now.

        Raises:
            RuntimeError: if given a closure, whose `backward()` would be an update of its own; or if a parameter that
                has been updated has a gradient again.
        """
        if closure is not None:
            raise RuntimeError(
                "step() was given a closure, but the parameters are already updated inside backward(): "
                "call loss.backward() yourself and then step() without a closure"
            )
        if self.closed:
            return
        self._end_backwards()
        self._claim()
        left = self._left()
        for p in left:
            if id(p) in self._updated:
                raise self._second(p)
        if left and not self._brought and is_rehearsal(self._inner, left):
            self._rehearsal.hold(self._inner, self._way, left)
        else:
            if left:
                self._rehearsal.forget()
                self._apply(left)
            self._partial.step_rest(self._updated)
        self._begin_anew()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer does; there is a gradient only where no update took place."""
        self._end_backwards()
        if self._interrupted:
            self._begin_anew()
        self._kept = self._brought = False
        self._inner.zero_grad(set_to_none)

    def _begin_anew(self) -> None:
        self._interrupted = self._kept = self._brought = False
        self._updated.clear()
        self._settle()

    def _settle(self) -> None:
        self._partial.settle()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the wrapped optimizer, or of an `OptimizerInBackward` over it.

        Raises:
            TypeError: it is no dict.
            ValueError: it does not fit, where that can be told; nothing has changed then.
        """
        super().load_state_dict(state_dict)
        self._rehearsal = Rehearsal()
        self._begin_anew()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as the wrapped optimizer does; if that is refused, nothing has changed."""
        groups, known = list(self.param_groups), set(self.state)
        self._inner.add_param_group(param_group)
        try:
            if not self.closed:
                self._claim()
        except BaseException:
            self.param_groups = groups
            for p in set(self.state) - known:
                del self.state[p]
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}{' (closed)' if self.closed else ''} over {self._inner!r}"
