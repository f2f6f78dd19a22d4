"""From two traces to a verdict: bits, noise floor, power."""

from inbackward.judging.control import control
from inbackward.judging.diagnosis import diagnose_run
from inbackward.judging.judge import judge
from inbackward.judging.together import merge
from inbackward.judging.verdict import SEVERITY, Diagnosis, Divergence, Finding, Outcome, Verdict, worst

__all__ = [
    "SEVERITY",
    "Diagnosis",
    "Divergence",
    "Finding",
    "Outcome",
    "Verdict",
    "control",
    "diagnose_run",
    "judge",
    "merge",
    "worst",
]
