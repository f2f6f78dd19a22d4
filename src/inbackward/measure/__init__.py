"""What stepping inside the backward saves, and costs: memory, simulated or observed, and time."""

from inbackward.measure.memory import Memory, MemoryCurve, Point
from inbackward.measure.observe import observe_memory
from inbackward.measure.setup import Setup
from inbackward.measure.simulate import simulate_memory
from inbackward.measure.timing import Spread, Times, in_turn, quartiles, ratio, time_steps
from inbackward.measure.watch import MemoryWatch

__all__ = [
    "Memory",
    "MemoryCurve",
    "MemoryWatch",
    "Point",
    "Setup",
    "Spread",
    "Times",
    "in_turn",
    "observe_memory",
    "quartiles",
    "ratio",
    "simulate_memory",
    "time_steps",
]
