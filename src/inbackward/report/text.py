"""Lines that fit a terminal, and what a divergence in each quantity means."""

from __future__ import annotations

import textwrap

from inbackward.wording import printable

WIDTH = 100

# What a divergence in each quantity says about where to look; keys are ``compare.QUANTITIES`` and the expectations'.
HOW_TO_READ = {
    "loss": "A loss is computed before its iteration's update: look at the forward, or the update before it.",
    "buffer": "Buffers change in the forward: it ran another number of times, or on other parameters.",
    "parameter": "This iteration's update used another gradient, hyperparameter or state than the reference's.",
    "state": "The optimizer's memory differs: it was given another gradient, or stepped another number of times.",
    "state-names": "The optimizer keeps state where the reference keeps none, or none where it keeps some.",
    "hyperparameter": "The update read its hyperparameters from elsewhere than the groups that the user changes.",
    "gradient": "A gradient is there where none should be, or gone where one should be left.",
    "early": "A parameter was updated before the last backward of its iteration.",
    "observed": "What the loop or a user's hook was given differs: a norm, a scale, a gradient, a count of calls.",
    "bystander": "Something that the training must not touch has changed: a copy's original, a snapshot.",
    "replica": "Ranks have parted: each stepped with gradients of its own, before they were reduced or instead of it.",
    "ranks": "A rank died, hung or raised outside of training; the others could not go on without it.",
    "leak": "Something stays behind: look for references from hooks, globals and caches.",
    "rng": "Random numbers were drawn at other places than in the reference: dropout will differ from here on.",
    "state-dict": "A user who saves this checkpoint meets the same: keep plain tensors and numbers in the state dict.",
    "exception": "The two loops did not raise alike.",
}


def wrap(text: str, indent: str = "", lines: int = 3) -> list[str]:
    """``text`` on at most so many lines, the later ones indented; an ellipsis says that there was more."""
    more = indent + "  "
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=more,
        max_lines=lines,
        placeholder=" ...",
        break_on_hyphens=False,
    )


def clip(line: str) -> str:
    """``line`` on one line, its indentation kept; an ellipsis says that there was more."""
    indent = line[: len(line) - len(line.lstrip())]
    return (wrap(line.strip(), indent, lines=1) or [""])[0]
