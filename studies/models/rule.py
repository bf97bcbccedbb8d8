# SPDX-License-Identifier: MIT
"""From layer-wise numbers to bits lost (rule 4 of studies/models/README.md): a line in logs, fitted on two models, tested on
the third."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

PREDICTORS = {"mass lost": "mass_lost", "output error": "error", "sink lost": "sink_lost"}
WITHIN, WIDEST = 0.8, 10.0
# Student's t, 97.5 %, by degrees of freedom; beyond them that of the next smaller one.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
           12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.0, 120: 1.98}


@dataclass(frozen=True)
class Point:
    model: str
    name: str
    excess: float  # share of the dense bits
    mass_lost: float
    error: float
    sink_lost: float


@dataclass(frozen=True)
class Line:
    """log y = a + b log x, and what the interval of a prediction needs."""

    a: float
    b: float
    spread: float
    x: np.ndarray

    def predict(self, value: float) -> tuple[float, float, float]:
        """The mean, and the ends of the 95 % interval of one more point."""
        at, n = math.log(value), len(self.x)
        away = (at - self.x.mean()) ** 2 / ((self.x - self.x.mean()) ** 2).sum()
        half = student(n - 2) * self.spread * math.sqrt(1 + 1 / n + away)
        middle = self.a + self.b * at
        return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def student(freedom: int) -> float:
    return STUDENT[max(one for one in STUDENT if one <= freedom)]


def fitted(xs, ys) -> Line:
    x, y = np.log(xs), np.log(ys)
    b = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    a = y.mean() - b * x.mean()
    return Line(a, b, math.sqrt(((y - a - b * x) ** 2).sum() / (len(x) - 2)), x)


@dataclass(frozen=True)
class Trial:
    """A predictor, fitted on the other models and tested on `model`."""

    predictor: str
    model: str
    fitted_points: int
    points: int
    within: int
    widest: float  # factor from the lower end of an interval to the upper one
    off: float  # median factor between prediction and truth


def usable(points: list[Point], field: str) -> list[Point]:
    return [one for one in points if one.excess > 0 and getattr(one, field) > 0]


def trials(points: list[Point]) -> list[Trial]:
    """Of predictors for which three models have points."""
    found = []
    for name, field in PREDICTORS.items():
        here = usable(points, field)
        models = sorted({one.model for one in here})
        if len(models) < 3:
            continue
        for third in models:
            others = [one for one in here if one.model != third]
            own = [one for one in here if one.model == third]
            if len(others) < 4:
                continue
            line = fitted([getattr(one, field) for one in others], [one.excess for one in others])
            said = [line.predict(getattr(one, field)) for one in own]
            found.append(Trial(
                name, third, len(others), len(own),
                sum(low <= one.excess <= high for one, (_, low, high) in zip(own, said)),
                max(high / low for _, low, high in said),
                float(np.median([math.exp(abs(math.log(mean / one.excess))) for one, (mean, _, _) in zip(own, said)]))))
    return found


def carries(of: list[Trial]) -> bool:
    return bool(of) and all(one.within >= WITHIN * one.points and one.widest <= WIDEST for one in of)
