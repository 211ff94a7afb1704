"""The losses of linear models: what a margin costs, and how fast that changes.

| name          | loss of margin m, target y                                        | y      |
| ------------- | ----------------------------------------------------------------- | ------ |
| hinge         | max(0, 1 − ym)                                                    | ±1     |
| squared_hinge | max(0, 1 − ym)²                                                   | ±1     |
| log_loss      | log(1 + e^(−ym))                                                  | ±1     |
| modified_huber| max(0, 1 − ym)², but −4ym where ym < −1                           | ±1     |
| squared_error | (m − y)²/2                                                        | number |
| huber         | (m − y)²/2, but ε|m − y| − ε²/2 where |m − y| > ε                 | number |

They are scikit-learn's, to the last constant.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

from plesio.kernels.compiled import inlined

HINGE, SQUARED_HINGE, LOG, MODIFIED_HUBER, SQUARED, HUBER = range(6)
CLASSIFICATION = {"hinge": HINGE, "log_loss": LOG, "modified_huber": MODIFIED_HUBER, "squared_hinge": SQUARED_HINGE}
REGRESSION = {"huber": HUBER, "squared_error": SQUARED}

STEEPEST = 1e12  # a slope beyond this is cut, as in scikit-learn: one wild row must not end the run


@inlined
def slope_and_loss(kind, margin, target, epsilon):
    """(slope, loss, factor): the loss is `loss + log(factor)`.

    A logarithm a row would cost a tenth of the run; the kernel multiplies the factors and takes one now and then.
    """
    if kind == LOG:
        z = margin * target
        if z < -30.0:  # e^z is nothing beside 1
            return -target, -z, 1.0
        e = math.exp(-z)
        return -target * (e / (1.0 + e)), 0.0, 1.0 + e
    if kind == HINGE:
        z = margin * target
        return (-target, 1.0 - z, 1.0) if z <= 1.0 else (0.0, 0.0, 1.0)
    if kind in (SQUARED_HINGE, MODIFIED_HUBER):
        short = 1.0 - margin * target
        if short <= 0.0:
            return 0.0, 0.0, 1.0
        if kind == MODIFIED_HUBER and short > 2.0:
            return -4.0 * target, 4.0 * (short - 1.0), 1.0
        slope = -2.0 * target * short
        return slope if abs(slope) < STEEPEST else math.copysign(STEEPEST, slope), short * short, 1.0
    error = margin - target
    if kind == HUBER and abs(error) > epsilon:
        return math.copysign(epsilon, error), epsilon * abs(error) - 0.5 * epsilon * epsilon, 1.0
    return error if abs(error) < STEEPEST else math.copysign(STEEPEST, error), 0.5 * error * error, 1.0
