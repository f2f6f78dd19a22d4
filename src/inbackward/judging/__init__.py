"""From two traces to a verdict: bits, noise floor, power."""

from inbackward.judging.control import control
from inbackward.judging.judge import judge
from inbackward.judging.together import merge
from inbackward.judging.verdict import SEVERITY, Divergence, Outcome, Verdict, worst

__all__ = ["SEVERITY", "Divergence", "Outcome", "Verdict", "control", "judge", "merge", "worst"]
