"""What somebody else wrote; its text becomes a module of the foreign project."""

import torch

from inbackward import Implementation


class Right(torch.optim.Optimizer):
    """One optimizer a parameter, made at its first gradient; it uses what the outer groups say at each step."""

    def __init__(self, params, optimizer_cls, **kwargs):
        probe = optimizer_cls([torch.zeros(1, requires_grad=True)], **kwargs)
        super().__init__(params, probe.defaults)
        self.make = optimizer_cls
        self.inner = {}
        self.hooks = [
            p.register_post_accumulate_grad_hook(lambda p, group=group: self.update(p, group))
            for group in self.param_groups
            for p in group["params"]
            if p.requires_grad
        ]

    def update(self, p, group):
        now = {key: value for key, value in group.items() if key != "params"}
        if p not in self.inner:
            self.inner[p] = self.make([{"params": [p], **now}])
        self.follow(self.inner[p].param_groups[0], now)
        self.inner[p].step()
        self.state[p] = self.inner[p].state[p]
        p.grad = None

    def follow(self, inner_group, now):
        inner_group.update(now)

    def step(self, closure=None):
        if closure is not None:
            raise RuntimeError("step() takes no closure: the update is done inside backward()")

    def close(self):
        for hook in self.hooks:
            hook.remove()


class KeepsItsLr(Right):
    """Each inner optimizer keeps the lr it was made with; the outer groups, which are logged, show the schedule's."""

    def follow(self, inner_group, now):
        pass


class Separable(torch.optim.SGD):
    """Steps against the sign of the gradient: each element for itself."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.sign_()
        return super().step(closure)


class Coupled(torch.optim.SGD):
    """Divides by the norm of all gradients together: no parameter can be stepped before all gradients are known."""

    def __init__(self, params, lr=0.5):
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        for gradient in gradients:
            gradient.div_(norm)
        return super().step(closure)


ARM = [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})]
right = Implementation.drop_in(Right, optimizers=ARM)
keeps_its_lr = Implementation.drop_in(KeepsItsLr, optimizers=ARM)
