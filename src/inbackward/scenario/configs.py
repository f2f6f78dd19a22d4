"""What a scenario is made of: plain, frozen, validated data. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LARGEST = 65_536
DTYPES = ("float32", "bfloat16", "float16", "float64")
HOOKS = ("scale", "mask", "watch")
CHECKPOINTING = ("", "reentrant", "non-reentrant")
MODEL_KINDS = ("llama", "convolution")
DATA_SOURCES = ("standard-library", "synthetic")
SELECTORS = ("@matrix", "@vector", "@first", "@last", "@even")
STRATEGIES = ("single", "ddp", "fsdp2", "hsdp", "tensor-parallel", "fsdp2-tensor-parallel", "cpu-offload")
SHARDING = ("fsdp2", "hsdp", "fsdp2-tensor-parallel", "cpu-offload")  # those that fully_shard
TWO_DIMENSIONAL = ("hsdp", "fsdp2-tensor-parallel")  # a mesh of two dimensions, the second of size 2
SCHEDULES = (
    "LambdaLR", "StepLR", "LinearLR", "CosineAnnealingLR", "OneCycleLR", "CyclicLR", "ExponentialLR",
    "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler", "CosineAnnealingWarmRestarts", "MultiStepLR",
)  # fmt: skip


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``condition``: the one way a scenario refuses bad input."""
    if not condition:
        raise ValueError(message)


def choose(value: str, choices: tuple[str, ...], what: str) -> None:
    require(value in choices, f"{what} is {value!r}; choose one of {', '.join(choices)}")


def require_size(value: int, what: str) -> None:
    """Refuse a size that is none, and one that a slip of the keyboard in a file would fill the memory with."""
    require(value >= 1, f"{what} is {value}; it must be at least 1")
    require(value <= LARGEST, f"{what} is {value}; it must be at most {LARGEST}")


def require_selectors(patterns: tuple[str, ...], what: str) -> None:
    """Refuse a pattern that looks like a selector and is none."""
    for pattern in patterns:
        if pattern.startswith("@"):
            choose(pattern, SELECTORS, what)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A small transformer (or a convolution with batch norm), or any ``factory`` given as ``module:attribute``.

    A factory takes no argument and returns a module that maps int64 tokens below 256, ``(batch, time)``, to logits
    ``(batch, time, at least 256)``. With ``branch`` the model has a layer that an iteration may leave out; with
    ``sparse`` the embedding's gradient is sparse; with ``odd`` there are parameters with no elements, with one, and
    without a dimension. ``checkpointing`` recomputes every block in the backward; with ``shared`` one block stands at
    every layer; with ``late_read`` the backward ends by reading the head's weight once more. ``mixed`` gives
    parameters that match a pattern their own dtype: ``(("*norm*", "float32"),)``. With ``transposed`` matrices lie in
    memory column by column, so that no flat view of one exists.
    """

    kind: str = "llama"
    layers: int = 2
    dim: int = 32
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 64
    vocabulary: int = 256
    context: int = 64
    tied: bool = False
    bias: bool = False
    branch: bool = False
    sparse: bool = False
    odd: bool = False
    checkpointing: str = ""
    shared: bool = False
    late_read: bool = False
    dropout: float = 0.0
    mixed: tuple[tuple[str, str], ...] = ()
    transposed: bool = False
    factory: str = ""

    def __post_init__(self) -> None:
        choose(self.kind, MODEL_KINDS, "model.kind")
        for name in ("layers", "dim", "heads", "kv_heads", "hidden", "context"):
            require_size(getattr(self, name), f"model.{name}")
        require(self.vocabulary >= 256, f"model.vocabulary is {self.vocabulary}; tokens are bytes, so at least 256")
        require_size(self.vocabulary, "model.vocabulary")
        require(self.dim % (2 * self.heads) == 0, f"model.dim {self.dim} must be a multiple of 2 x heads {self.heads}")
        require(
            self.heads % self.kv_heads == 0, f"model.heads {self.heads} must be a multiple of kv_heads {self.kv_heads}"
        )
        require(0 <= self.dropout < 1, f"model.dropout is {self.dropout}; it must be in [0, 1)")
        choose(self.checkpointing, CHECKPOINTING, "model.checkpointing")
        for _, dtype in self.mixed:
            choose(dtype, DTYPES, "model.mixed")
        require(
            not self.factory or self.factory.count(":") == 1,
            f"model.factory is {self.factory!r}; write it as module:attribute",
        )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """``batch`` windows of ``length`` tokens an iteration and micro-batch."""

    source: str = "standard-library"
    batch: int = 2
    length: int = 16

    def __post_init__(self) -> None:
        choose(self.source, DATA_SOURCES, "data.source")
        for name in ("batch", "length"):
            require_size(getattr(self, name), f"data.{name}")


def betas_like(betas: Any, low: float, high: float) -> tuple[float, ...] | None:
    """As many as a class has by default, `high` the last of them; ``None`` where it has no tuple of them."""
    return (*(low,) * (len(betas) - 1), high) if isinstance(betas, tuple | list) and betas else None


def class_path(cls: Any) -> str:
    """``module:qualified name``, the form in which a scenario names a class.

    The classes of ``torch.optim`` are named there, not in the private module that defines them.
    """
    module = str(getattr(cls, "__module__", "?"))
    home = "torch.optim" if module.startswith("torch.optim.") else module
    return f"{home}:{getattr(cls, '__qualname__', repr(cls))}"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer class as ``module:qualified name``, its keyword arguments, and whether lr is given as a tensor."""

    cls: str = "torch.optim:AdamW"
    kwargs: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.01, "weight_decay": 0.1})
    tensor_lr: bool = False

    def __post_init__(self) -> None:
        require(self.cls.count(":") == 1, f"optimizer.cls is {self.cls!r}; write it as module:Class")
        require("params" not in self.kwargs, "optimizer.kwargs holds 'params'; the groups belong in scenario.groups")
        require(not self.tensor_lr or "lr" in self.kwargs, "optimizer.tensor_lr needs an lr in optimizer.kwargs")

    @property
    def of_torch(self) -> bool:
        """Whether it is one of torch's own."""
        return self.cls.startswith(("torch.optim:", "torch.optim."))


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """One parameter group: every parameter whose name matches ``match`` and that no earlier group took.

    ``match`` holds shell patterns (``"*.bias"``) or the selectors ``@matrix``, ``@vector``, ``@first``, ``@last`` and
    ``@even``, which fit any model; none makes an empty group. ``reverse`` lists the parameters in the reverse of the
    model's order, ``twice`` lists each of them twice, ``again`` takes also those that an earlier group took.
    """

    match: tuple[str, ...] = ("*",)
    options: Mapping[str, Any] = field(default_factory=dict)
    reverse: bool = False
    twice: bool = False
    again: bool = False

    def __post_init__(self) -> None:
        require_selectors(self.match, "group.match")
        require("params" not in self.options, "group.options holds 'params'; group.match chooses the parameters")


@dataclass(frozen=True, kw_only=True)
class ClipConfig:
    """``torch.nn.utils.clip_grad_norm_`` over the parameters of all groups, after the last backward."""

    max_norm: float = 1.0
    error_if_nonfinite: bool = False

    def __post_init__(self) -> None:
        require(self.max_norm > 0, f"clip.max_norm is {self.max_norm}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class ScalerConfig:
    """``torch.amp.GradScaler`` over fp16 autocast."""

    init_scale: float = 65536.0
    growth_interval: int = 2

    def __post_init__(self) -> None:
        require(self.init_scale > 0, f"scaler.init_scale is {self.init_scale}; it must be above 0")
        require(self.growth_interval >= 1, f"scaler.growth_interval is {self.growth_interval}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class HookConfig:
    """A hook of the user's on every parameter that matches, registered before the optimizer is built.

    ``scale`` and ``mask`` are tensor hooks that change the gradient (halve it; zero every other row); ``watch`` is a
    post-accumulate hook that notes the gradient it is given.
    """

    kind: str = "scale"
    match: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        choose(self.kind, HOOKS, "hook.kind")
        require_selectors(self.match, "hook.match")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """A learning-rate schedule by the name of its ``torch.optim.lr_scheduler`` class, stepped once an iteration.

    ``factors`` (``LambdaLR`` only) is a table: one row a group, or one row for all; the last entry goes on forever.
    ``parts`` are the schedules that ``SequentialLR`` and ``ChainedScheduler`` combine.
    """

    cls: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    factors: tuple[tuple[float, ...], ...] = ()
    parts: tuple[ScheduleConfig, ...] = ()

    def __post_init__(self) -> None:
        choose(self.cls, SCHEDULES, "schedule.cls")
        require(
            (self.cls == "LambdaLR") == bool(self.factors) and all(self.factors),
            "schedule.factors goes with LambdaLR, one row of factors a group",
        )
        require(
            (self.cls in ("SequentialLR", "ChainedScheduler")) == bool(self.parts),
            "schedule.parts goes with SequentialLR and ChainedScheduler",
        )


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How the model is spread over ``ranks`` processes, each of which trains on its own data.

    The ranks of one tensor-parallel group train on the same data. ``mixed_precision`` is the dtype in which
    ``fully_shard`` computes and gathers, ``reduce_dtype`` the one in which it reduces gradients (``""``: the
    parameters' own); ``reshard`` is its ``reshard_after_forward``. With ``sync_last`` gradients are reduced at the last
    micro-batch of an iteration only (``no_sync()``, ``set_requires_gradient_sync``). ``sequence`` adds sequence
    parallelism to tensor parallelism. ``find_unused``, ``bucket_view`` and ``static_graph`` are DDP's
    ``find_unused_parameters``, ``gradient_as_bucket_view`` and ``static_graph``.
    """

    strategy: str = "single"
    ranks: int = 1
    mixed_precision: str = ""
    reduce_dtype: str = ""
    reshard: bool = True
    sync_last: bool = False
    sequence: bool = False
    find_unused: bool = False
    bucket_view: bool = False
    static_graph: bool = False

    def __post_init__(self) -> None:
        choose(self.strategy, STRATEGIES, "parallel.strategy")
        require_size(self.ranks, "parallel.ranks")
        single = self.strategy == "single"
        require(not single or self.ranks == 1, f"parallel.ranks is {self.ranks}; the strategy 'single' has 1")
        choose(self.mixed_precision, ("", *DTYPES), "parallel.mixed_precision")
        choose(self.reduce_dtype, ("", *DTYPES), "parallel.reduce_dtype")
        two = self.strategy in TWO_DIMENSIONAL
        require(
            not two or (self.ranks % 2 == 0 and self.ranks >= 4),
            f"parallel.ranks is {self.ranks}; {self.strategy} needs an even number, at least 4",
        )
        sharded = not (self.mixed_precision or self.reduce_dtype) and self.reshard
        require(
            sharded or self.strategy in SHARDING,
            f"parallel.strategy is {self.strategy!r}; mixed precision and resharding go with {', '.join(SHARDING)}",
        )
        require(
            not self.sequence or self.strategy.endswith("tensor-parallel"),
            f"parallel.strategy is {self.strategy!r}; parallel.sequence goes with tensor parallelism",
        )
        require(
            not (self.find_unused or self.bucket_view or self.static_graph) or self.strategy == "ddp",
            f"parallel.strategy is {self.strategy!r}; find_unused, bucket_view and static_graph go with ddp",
        )


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def fit(model: ModelConfig, parallel: ParallelConfig) -> ModelConfig:
    """``model`` with heads, widths and vocabulary that its tensor-parallel group can share, and nothing tied.

    ``parallelize_module`` splits the two uses of a tied weight apart.
    """
    if not parallel.strategy.endswith("tensor-parallel"):
        return model
    ranks = 2 if parallel.strategy in TWO_DIMENSIONAL else parallel.ranks
    heads, kv_heads = _up(model.heads, ranks), _up(model.kv_heads, ranks)
    heads = _up(heads, kv_heads)
    return replace(
        model,
        heads=heads,
        kv_heads=kv_heads,
        dim=_up(model.dim, 2 * heads),
        hidden=_up(model.hidden, ranks),
        vocabulary=_up(model.vocabulary, ranks),
        tied=False,
    )


def fit_sequence(data: DataConfig, parallel: ParallelConfig) -> DataConfig:
    """``data`` in windows that a sequence-parallel group can share: of uneven parts gloo aborts the process."""
    return replace(data, length=_up(data.length, parallel.ranks)) if parallel.sequence else data
