"""All known mistakes: reference runs with one of them built in, by which a divergence is explained.

The order is that of their names in a tie: what belongs to an event or an option of the scenario before what may happen
in any, and last those with a number that is fitted to the run.
"""

from inbackward.judging import (
    what_ifs_fitted,
    what_ifs_of_gradients,
    what_ifs_of_hyperparameters,
    what_ifs_of_state,
    what_ifs_of_steps,
)

MISTAKES = (
    *what_ifs_of_hyperparameters.MISTAKES,
    *what_ifs_of_state.MISTAKES,
    *what_ifs_of_gradients.MISTAKES,
    *what_ifs_of_steps.MISTAKES,
    *what_ifs_fitted.MISTAKES,
)
