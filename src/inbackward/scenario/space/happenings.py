"""Features that happen in an iteration."""

from __future__ import annotations

from inbackward.scenario.configs import GroupConfig
from inbackward.scenario.events import (
    AccessGradient,
    AddGroup,
    Cast,
    Copy,
    ExtraCalls,
    ForeignBackward,
    Freeze,
    Interrupt,
    LoadUnfit,
    NonFinite,
    Observe,
    Recreate,
    Resume,
    SecondBackward,
    SkipBranch,
    Snapshot,
    StepClosure,
    Unfreeze,
)
from inbackward.scenario.space.draft import Draft, feature
from inbackward.scenario.space.fields import ANY, FREEZABLE, other_options


@feature("resume", share=0.3)
def resume(d: Draft) -> None:
    """Once or twice; who saves is who trained until then."""
    choose = d.choices
    side = "plain" if choose.chance(0.15) or d.id == "resume-from-plain" else "candidate"
    at = 0 if d.id == "resume-at-zero" else d.when(1)
    for _ in range(1 + (choose.chance(0.25) and d.id not in ("dcp", "resume-fresh-process"))):
        into_plain = choose.chance(0.15)
        if d.id in ("resume-into-plain", "resume-from-plain"):
            into_plain = d.id == "resume-into-plain"
        if d.id in ("gradient-freed", "observer"):  # what is asked there, the plain optimizer does not do
            side, into_plain = "candidate", False
        goes_on = "plain" if into_plain else "candidate"
        by_epoch = choose.chance(0.5) and at > 0 and not d.has("re-created")
        table = d.schedule is not None and d.schedule.cls == "LambdaLR"
        d.add(
            Resume(
                at=at,
                saved_by=side,
                loaded_by=goes_on,
                route=_ROUTES.get(d.id) or choose.one_of(("memory", "file")),
                schedule="last-epoch" if table and by_epoch else "state-dict",
            )
        )
        side, at = goes_on, at + 1
        if at >= d.iterations:
            return


_ROUTES = {"dcp": "dcp", "resume-fresh-process": "process", "weights-only-load": "file"}


@feature("re-created", share=0.15)
def re_created(d: Draft) -> None:
    on_a_new_model = d.choices.chance(0.2)
    if d.id in ("re-created", "model-only"):
        on_a_new_model = d.id == "model-only"
    ways = ("model-before", "model-after") if on_a_new_model else ("close", "rebind", "del", "held")
    d.add(Recreate(at=d.when(1), how=d.choices.one_of(ways)))


@feature("deepcopy")
def deepcopy(d: Draft) -> None:
    d.add(Copy(at=d.when(), how=d.choices.one_of(("deepcopy", "pickle", "model"))))


@feature("cast-or-move", share=0.16)
def cast_or_move(d: Draft) -> None:
    """Adam and its kin raise where their state has another dtype, so they are mostly cast before they have any."""
    at = d.when()
    if d.knows("betas") and d.choices.chance(0.9):
        at = 0
    d.add(Cast(at=at, dtype=d.choices.one_of(("float64", "bfloat16"))))
    if d.choices.chance(0.3):
        d.add(Cast(at=at, dtype="float32"))


@feature("freeze-later", share=0.14)
def freeze_later(d: Draft) -> None:
    match, at = d.choices.one_of(FREEZABLE), d.when(1)
    d.add(Freeze(at=at, match=match))
    if d.choices.chance(0.5) and at + 1 < d.iterations:
        d.add(Unfreeze(at=d.when(at + 1), match=match))


@feature("unfreeze-later", share=0.1)
def unfreeze_later(d: Draft) -> None:
    match = d.fields.setdefault("frozen", d.choices.one_of(FREEZABLE))
    d.add(Unfreeze(at=d.when(1), match=match))


@feature("add-param-group", share=0.12)
def add_param_group(d: Draft) -> None:
    """The rest of the parameters come later, frozen until then, or trained without anyone who steps them."""
    now, later = (("@matrix",), ("@vector",)) if not d.has("convolution") else (("embedding*", "head*"), ("[lnb]*",))
    d.groups = [GroupConfig(match=now, options=other_options(d, last=True))]
    at = d.when()
    if d.choices.chance(0.5):
        d.fields["frozen"] = later
        d.add(Unfreeze(at=at, match=later))
    d.add(AddGroup(at=at, group=GroupConfig(options=other_options(d), reverse=d.choices.chance(0.3))))


@feature("unused", share=0.2)
def unused(d: Draft) -> None:
    d.model["branch"] = True
    d.add(*(SkipBranch(at=i) for i in sorted({d.when() for _ in range(2)})))


@feature("observer", share=0.15)
def observer(d: Draft) -> None:
    """The dictionary for torch.distributed.checkpoint is read in this row only: it takes as long as an iteration.

    Nor where a backward is interrupted: state that was made for reading stands there until the first update.
    """
    readings: tuple[str, ...] = ("state", "groups", "state-dict")
    if d.id == "observer" and not d.has("interrupted-backward"):
        readings += ("dcp",)
    for i in sorted({d.when() for _ in range(2)}):
        what = tuple(reading for reading in readings if d.choices.chance(0.5))
        d.add(Observe(at=i, what=what or readings[-1:]))


@feature("snapshot-independent", share=0.12)
def snapshot_independent(d: Draft) -> None:
    d.add(Snapshot(at=d.when(), route=d.choices.one_of(("memory", "file"))))


@feature("mismatched-checkpoint")
def mismatched_checkpoint(d: Draft) -> None:
    kinds = ("missing-state", "wrong-shape", "no-groups") + (() if d.groups else ("missing-parameter",))
    d.add(LoadUnfit(at=d.when(1), what=d.choices.one_of(kinds)))


@feature("foreign-backward")
def foreign_backward(d: Draft) -> None:
    for i in sorted({d.when() for _ in range(2)}):
        d.add(ForeignBackward(at=i, how=d.choices.one_of(("through", "skipped"))))


@feature("extra-step-calls", share=0.15)
def extra_step_calls(d: Draft) -> None:
    for i in sorted({d.when() for _ in range(2)}):
        calls = tuple(d.choices.one_of(("step", "zero_grad")) for _ in range(d.choices.integer(1, 3)))
        d.add(ExtraCalls(at=i, calls=calls, when=d.choices.one_of(("before", "after"))))


@feature("non-finite", share=0.1)
def non_finite(d: Draft) -> None:
    """Late, since a NaN spreads, and what is NaN on both sides shows no difference."""
    value, match = d.choices.one_of(("nan", "inf", "-inf")), d.choices.one_of((("*",), *ANY))
    d.add(NonFinite(at=d.when(d.iterations - 2), value=value, match=match))


@feature("interrupted-backward", share=0.22)
def interrupted_backward(d: Draft) -> None:
    """In an iteration with no other optimizer or dtype: what was updated by then is read off the one before."""
    taken = {e.at for e in d.events if isinstance(e, (Recreate, Cast))}
    free = [i for i in range(d.iterations) if i not in taken]
    d.add(
        Interrupt(
            at=d.choices.one_of(free), match=d.choices.one_of((("@first",), ("@last",), ("*out.*", "layers.0.*")))
        )
    )


@feature("gradient-access")
def gradient_access(d: Draft) -> None:
    how, match = d.choices.one_of(("read", "autograd-grad", "inputs")), d.choices.one_of((("*",), *ANY))
    d.add(*(AccessGradient(at=i, how=how, match=match) for i in sorted({d.when() for _ in range(2)})))


@feature("two-backwards")
def two_backwards(d: Draft) -> None:
    d.add(SecondBackward(at=d.when()))


@feature("closure")
def closure(d: Draft) -> None:
    d.add(*(StepClosure(at=i) for i in sorted({d.when() for _ in range(2)})))
