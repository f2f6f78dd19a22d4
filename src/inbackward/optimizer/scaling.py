"""A `GradScaler` for gradients that do not all exist at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.amp import GradScaler

from inbackward.optimizer.wrapper import OptimizerWrapper


class Scaling:
    """Unscales gradients as they come, and tells the scaler at the end whether one of them was infinite or NaN.

    By the kernel that the scaler uses itself (`torch.amp.GradScaler.unscale_`), so that the numbers are the same.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        self._found: dict[torch.device, Tensor] = {}
        self._inverse: dict[torch.device, Tensor] = {}

    @torch.no_grad()
    def unscale(self, parameters: Sequence[Tensor]) -> None:
        """Divide the gradients by the scale, and take note of any that is not finite.

        Raises:
            ValueError: one is in fp16, where dividing would lose what scaling has saved; as the scaler itself does.
        """
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for p in parameters:
            gradient = p.grad
            if gradient is None:
                continue
            if gradient.dtype == torch.float16:
                raise ValueError("Attempting to unscale FP16 gradients: keep the parameters in fp32, under autocast")
            values = gradient._values() if gradient.is_sparse else gradient
            alike.setdefault((values.device, values.dtype), []).append(values)
        for (device, _), gradients in alike.items():
            if device not in self._found:
                self._found[device] = torch.zeros((), device=device)
                scale: Tensor = self._scaler.scale(torch.ones((), device=device))
                self._inverse[device] = scale.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, self._found[device], self._inverse[device])

    def unscale_all(self, optimizer: OptimizerWrapper) -> None:
        """Unscale gradients that all exist."""
        self._scaler.unscale_(optimizer)

    def overflowed(self) -> bool:
        """Whether any gradient was not finite. Waits for the device, as `GradScaler.step` does."""
        return any(bool(found) for found in self._found.values())

    def tell(self, optimizer: OptimizerWrapper) -> None:
        """Let the scaler unscale one number for each device, which is infinite where a gradient was not finite.

        So its own `step(optimizer)` and `update()` know what they have to.
        """
        probes = [torch.zeros((), device=device) for device in self._found]
        for probe, found in zip(probes, self._found.values(), strict=True):
            probe.grad = torch.where(found > 0, torch.inf, 0.0)
        groups, optimizer.param_groups = optimizer.param_groups, [{"params": probes}]
        try:
            self._scaler.unscale_(optimizer)
        finally:
            optimizer.param_groups = groups
