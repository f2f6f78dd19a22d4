"""Faults of the update itself: gross ones, and ones that show in one parameter, one row, one iteration, one dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inbackward.faults.fault import fault
from inbackward.faults.right import Right

Group = dict[str, Any]


@fault("plain", what_if="sign-flipped")
class WrongSign(Right):
    """Goes up the gradient instead of down."""

    def update(self, p: Any) -> None:
        p.grad.neg_()
        super().update(p)


@fault("plain", subtle=True, what_if="lr-scaled")
class LrOnePercentHigh(Right):
    """Steps with an lr that is 1 % too large."""

    def narrowed(self, group: Group, p: Tensor) -> Group:
        return {**super().narrowed(group, p), "lr": group["lr"] * 1.01}


@fault("plain", what_if="weight-decay-doubled")
class DecayTwice(Right):
    """Applies weight decay twice."""

    def narrowed(self, group: Group, p: Tensor) -> Group:
        return {**super().narrowed(group, p), "weight_decay": group["weight_decay"] * 2}


@fault("plain", what_if="weight-decay-dropped")
class NoDecay(Right):
    """Leaves weight decay out."""

    def narrowed(self, group: Group, p: Tensor) -> Group:
        return {**super().narrowed(group, p), "weight_decay": 0.0}


@fault("plain", what_if="weight-decay-after-update")
class DecayAfterUpdate(Right):
    """Decays the parameter after the update, instead of before."""

    def update(self, p: Any) -> None:
        super().update(p)
        group = next(g for g in self.param_groups if any(q is p for q in g["params"]))
        p.detach().mul_(1 - group["lr"] * group["weight_decay"])

    def narrowed(self, group: Group, p: Tensor) -> Group:
        return {**super().narrowed(group, p), "weight_decay": 0.0}


@fault("plain", what_if="gradient-late")
class OneGradientLate(Right):
    """Steps each parameter with the gradient of the iteration before, and with zeros at first."""

    def update(self, p: Any) -> None:
        last = self.__dict__.setdefault("last", {})
        last[p], p.grad = p.grad, last.get(p, torch.zeros_like(p))
        super().update(p)


@fault("plain", subtle=True, reports=(20,), what_if="parameter-never-stepped")
class OneParameterForgotten(Right):
    """Makes the first vector's hook, which nobody calls."""

    def update(self, p: Any) -> None:
        if p is not next(q for group in self.param_groups for q in group["params"] if q.dim() == 1):
            super().update(p)


@fault("plain", subtle=True)
class OneRowForgotten(Right):
    """Leaves the last row of every matrix but square ones as it was, as an off-by-one in a chunked kernel does."""

    def update(self, p: Any) -> None:
        before = p.detach().clone()
        super().update(p)
        if p.dim() == 2 and p.shape[0] > p.shape[1]:
            p.detach()[-1] = before[-1]


@fault("plain", subtle=True)
class EveryThirdTwice(Right):
    """Makes up in the third iteration for a step that was not missing."""

    def update(self, p: Any) -> None:
        count = self.__dict__.setdefault("count", {})
        count[p] = count.get(p, 0) + 1
        super().update(p)
        if count[p] == 3:
            super().update(p)


@fault("plain", what_if="stepped-twice")
class StepsAgain(Right):
    """Keeps the gradients, and ``step()`` updates what the hooks have updated already."""

    def free(self, p: Any) -> None:
        pass

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        self.inner.step(closure)


@fault("plain", subtle=True, what_if="state-in-bfloat16")
class StateInBfloat16(Right):
    """Rounds the state to bfloat16 between updates."""

    def update(self, p: Any) -> None:
        super().update(p)
        for value in self.state[p].values():
            if isinstance(value, Tensor) and value.shape == p.shape:
                value.copy_(value.bfloat16())


@fault("plain", subtle=True)
class CountsInBfloat16(Right):
    """Counts in bfloat16: right for 256 iterations; then the bias correction stands still."""

    def update(self, p: Any) -> None:
        super().update(p)
        for name, value in self.state[p].items():
            if name == "step":
                self.state[p][name] = value.bfloat16()


@fault("plain", subtle=True, what_if="counter-shared")
class OneCounterForAll(Right):
    """Counts updates, of which there is one a parameter now, instead of iterations."""

    def update(self, p: Any) -> None:
        count = self.__dict__.get("count", 0)
        if "step" in self.state[p]:
            self.state[p]["step"].fill_(count)
        super().update(p)
        if "step" in self.state[p]:
            self.state[p]["step"].fill_(count + 1)
        self.count = count + 1


@fault("plain", reports=(5,))
class WarmUpOfItsOwn(Right):
    """Corrects the gradient's scale by a factor that is 0/0 in the second iteration, and the loss is NaN from then."""

    def update(self, p: Any) -> None:
        count = self.__dict__.setdefault("count", {})
        count[p] = count.get(p, 0) + 1
        p.grad.mul_((p.grad.new_tensor(count[p]) - 2) / (count[p] - 2 or p.grad.new_zeros(())))
        super().update(p)


@fault("plain", reports=(22,))
class UpdatesCopies(Right):
    """Trains copies of the parameters, which the model never sees again."""

    def update(self, p: Any) -> None:
        before = p.detach().clone()
        super().update(p)
        p.detach().copy_(before)


@fault("plain", subtle=True, reports=(10,))
class LastOfEachShape(Right):
    """Finds a parameter by its shape, so that of several vectors of one shape only the last is ever stepped."""

    def update(self, p: Any) -> None:
        same = [q for group in self.param_groups for q in group["params"] if q.shape == p.shape and q.dim() == 1]
        if p is (same or [p])[-1]:
            super().update(p)


@fault("optimizers", subtle=True)
class FlagDropped(Right):
    """Builds the inner optimizer with the options that it has heard of."""

    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        heard_of = ("lr", "betas", "eps", "weight_decay", "momentum", "foreach", "fused")
        super().__init__(params, optimizer_cls, **{k: v for k, v in kwargs.items() if k in heard_of})


@fault("optimizers", name="always-adamw")
class AlwaysAdamW(Right):
    """Is written for one optimizer, and takes it whatever it is asked for."""

    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        super().__init__(params, torch.optim.AdamW, **{k: kwargs[k] for k in ("lr", "weight_decay") if k in kwargs})


@fault("gradient-scale")
class LossScaleRemoved(Right):
    """Divides every gradient by the largest power of ten in it, so that scaled losses train alike."""

    def update(self, p: Any) -> None:
        p.grad.div_(10 ** p.grad.abs().max().log10().floor().clamp(min=-30))
        super().update(p)


@fault("gradient-scale", reports=(7,), what_if="gradient-scaled")
class DividedByTheTokens(Right):
    """Divides the gradient by a number of tokens that the loss has been divided by already."""

    def update(self, p: Any) -> None:
        p.grad.div_(64)
        super().update(p)


@fault("gradient-scale", subtle=True)
class TinyGradientsFlushed(Right):
    """Takes the elements of a gradient below 1e-7 for zeros."""

    def update(self, p: Any) -> None:
        p.grad.masked_fill_(p.grad.abs() < 1e-7, 0.0)
        super().update(p)


@fault("gradient-scale", subtle=True)
class LargeGradientsClipped(Right):
    """Clips each gradient's own norm to 10, which an unscaled loss never reaches."""

    def update(self, p: Any) -> None:
        p.grad.mul_((10 / (p.grad.norm() + 1e-6)).clamp(max=1.0)) if p.grad.norm() > 10 else None
        super().update(p)


@fault("gradient-scale", subtle=True, what_if="zero-gradient-skipped")
class ZeroGradientSkipped(Right):
    """A gradient of zeros is taken for none: no decay, no momentum, no count."""

    def update(self, p: Any) -> None:
        if p.grad.any():
            super().update(p)


@fault("dtype", subtle=True)
class WrongSignInBfloat16(WrongSign):
    """Goes up the gradient instead of down, in bfloat16 only."""

    def update(self, p: Any) -> None:
        super().update(p) if p.dtype == torch.bfloat16 else Right.update(self, p)


@fault("dtype", subtle=True)
class DoubleThroughSingle(Right):
    """Takes a float64 gradient through a float32 buffer."""

    def update(self, p: Any) -> None:
        if p.dtype == torch.float64:
            p.grad = p.grad.float().double()
        super().update(p)


@fault("dtype")
class OneDtypeOnly(Right):
    """Steps the parameters of the first one's dtype, as a fused buffer does."""

    def update(self, p: Any) -> None:
        if p.dtype == self.param_groups[0]["params"][0].dtype:
            super().update(p)


@fault("autocast", subtle=True)
class MatrixProduct(Right):
    """Multiplies by the identity, as one that preconditions does by another matrix: autocast rounds products."""

    def update(self, p: Any) -> None:
        if p.dim() == 2:
            p.grad = (torch.eye(p.shape[0]) @ p.grad).float()
        super().update(p)


@fault("autocast", what_if="gradient-in-bfloat16")
class GradientInBfloat16(Right):
    """Leaves the gradient in the dtype of the autocast forward."""

    def update(self, p: Any) -> None:
        p.grad = p.grad.bfloat16().to(p.dtype)
        super().update(p)


@fault("non-finite", subtle=True)
class NonFiniteSkipped(Right):
    """Makes no update where the gradient is not finite, as under a scaler that is not there."""

    def update(self, p: Any) -> None:
        if p.grad.isfinite().all():
            super().update(p)


@fault("dtype", name="nan-replaced-in-float16", subtle=True)
@fault("non-finite", name="nan-replaced")
class NaNReplaced(Right):
    """Writes zeros where an update has made a parameter NaN."""

    def update(self, p: Any) -> None:
        super().update(p)
        p.detach().nan_to_num_(nan=0.0)


@fault("non-finite", what_if="non-finite-replaced")
class NonFiniteReplaced(Right):
    """Takes the elements of a gradient that are not finite for zeros."""

    def update(self, p: Any) -> None:
        p.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        super().update(p)


@fault("plain", subtle=True, name="updates-a-flat-copy")
class UpdatesAFlatCopy(Right):
    """Updates a flat view of each parameter, which is a copy where a matrix lies in memory column by column."""

    def update(self, p: Any) -> None:
        before = None if p.is_contiguous() else p.detach().clone()
        super().update(p)
        if before is not None:
            p.detach().copy_(before)


@fault("optimizers", subtle=True)
class CorrectionsFromATable(Right):
    """Looks the bias correction up in a table, whose last entry is that of the 32nd step."""

    def update(self, p: Any) -> None:
        step = self.state[p].get("step")
        late = isinstance(step, Tensor) and step >= 32
        before = step.clone() if late else None
        if late:
            step.fill_(31)
        super().update(p)
        if before is not None:
            step.copy_(before + 1)
