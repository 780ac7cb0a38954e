"""Sampling to a precision, by simulation: share of the samples, coverage of the interval, errors and power of `decide`.

The code under test is the code that a run calls (`harness.stats.sequential`, `harness.stats.decision`), on many runs
at once. Scores are drawn with replacement from score vectors, so that the true mean is known: the real ones of a RULER
run (13 tasks x 500), the same with random answers turned into wrong or right ones, and adversarial ones. Subjects of
MMLU's sizes are drawn from without replacement. The seed is fixed; the Monte Carlo error is printed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from common import data_folder, emit, note, skip
from numpy.typing import NDArray

from harness.stats.decision import RATIO as LOOK_RATIO
from harness.stats.decision import critical_value, look, looks_of
from harness.stats.sequential import Design, Moments, estimate, grown

Array = NDArray[np.float64]
SEED = 20261201
CHUNK = 500
BARS = {1.0: 40.0, 1.5: 19.0, 2.0: 12.0}  # half-width in points -> the largest share of the samples, in percent
COVERAGE = 94.5


@dataclass
class Tally:
    """What many simulated runs came to. `covered` and `samples`: one entry per run; `rounds` after the pilot."""

    covered: list[Array] = field(default_factory=list)
    samples: list[Array] = field(default_factory=list)
    rounds: list[Array] = field(default_factory=list)

    @property
    def coverage(self) -> float:
        """Percent of the runs whose interval has the true mean in it."""
        return 100 * float(np.concatenate(self.covered).mean())

    @property
    def error(self) -> float:
        """Monte Carlo standard error of `coverage`, in percentage points."""
        return standard_error(self.coverage, sum(map(len, self.covered)))

    @property
    def mean_samples(self) -> float:
        """Samples of a run, on average."""
        return float(np.concatenate(self.samples).mean())

    @property
    def mean_rounds(self) -> float:
        """Rounds after the pilot, on average."""
        return float(np.concatenate(self.rounds).mean())


def standard_error(percent: float, runs: int) -> float:
    """Of a share that was simulated, in percentage points."""
    share = percent / 100
    return 100 * math.sqrt(max(share * (1 - share), 1e-4) / runs)


class Sums:
    """Sums of powers of the first n samples of every stratum, for any n: shape of `draws` is (runs, H, most)."""

    def __init__(self, draws: Array) -> None:
        zero = np.zeros((*draws.shape[:2], 1))
        self.powers = [np.concatenate([zero, np.cumsum(draws**k, axis=2)], axis=2) for k in (1, 2, 3)]

    def moments(self, n: Array) -> Moments:
        """Of the first `n` (runs, H) samples."""
        at = n.astype(np.int64)[..., None]
        return Moments.of_sums(n, *(np.take_along_axis(p, at, 2)[..., 0] for p in self.powers))


def with_replacement(strata: Sequence[Array], most: int, runs: int, rng: np.random.Generator) -> Array:
    """(runs, H, most) scores drawn from the vectors."""
    return np.stack([s[rng.integers(0, len(s), (runs, most))] for s in strata], axis=1)


def to_precision(design: Design, draw: Any, truth: float, target: float, runs: int, level: float = 0.95) -> Tally:
    """Simulate runs that stop at `target` (0..1), in chunks; `draw(runs)` makes their scores."""
    tally = Tally()
    for size in chunks(runs):
        sums = Sums(draw(size))
        n = np.tile(design.pilot, (size, 1))
        rounds = np.zeros(size)
        while True:
            moments = sums.moments(n)
            now = estimate(moments, design, level)
            going = ~((now.half <= target) | (n >= design.most).all(-1))
            if not going.any():
                break
            more = grown(moments, design, (target / np.maximum(now.half, 1e-12)) ** 2)
            n = np.where(going[:, None], more, n)
            rounds += going
        tally.covered.append(((now.low <= truth) & (truth <= now.high)).astype(np.float64))
        tally.samples.append(n.sum(-1))
        tally.rounds.append(rounds)
    return tally


def chunks(runs: int) -> Iterator[int]:
    """Sizes of parts of at most `CHUNK` runs."""
    for start in range(0, runs, CHUNK):
        yield min(CHUNK, runs - start)


# ------------------------------------------------------------------------------------------------------- score vectors


def real_vectors() -> list[Array]:
    """Scores of a real RULER run, one vector of 500 per task."""
    from tasks.ruler import score
    from tasks.ruler.scoring import read_predictions

    folder = data_folder()
    file = next((folder / "ruler_preds").glob("*.csv.gz"), None) if folder else None
    if file is None:
        skip("precision", "needs the RULER predictions of shared/data/ruler_preds")
        raise AssertionError
    found: dict[str, list[float]] = {}
    for row in read_predictions(file):
        found.setdefault(row.task, []).append(score(row.task, row.references, row.prediction))
    return [np.array(scores) for scores in found.values()]


def flipped(strata: Sequence[Array], share: float, to: float, rng: np.random.Generator) -> list[Array]:
    """The vectors with a random `share` of the answers scored `to` (0 or 1)."""
    return [np.where(rng.random(len(s)) < share, to, s) for s in strata]


def of_mean(p: float, size: int = 1000) -> Array:
    """A vector of zeros and ones."""
    return np.r_[np.ones(round(p * size)), np.zeros(size - round(p * size))]


def score_vectors(real: Sequence[Array]) -> dict[str, list[Array]]:
    """Every population of the simulation, by its name."""
    rng = np.random.default_rng(SEED)
    found: dict[str, list[Array]] = {"real": list(real)}
    for share in (0.05, 0.2, 0.5):
        found[f"real, {share:.0%} made wrong"] = flipped(real, share, 0.0, rng)
        found[f"real, {share:.0%} made right"] = flipped(real, share, 1.0, rng)
    found |= {f"all {p}": [of_mean(p)] * 13 for p in (0.01, 0.005, 0.9, 0.97, 0.99, 0.995, 0.998)}
    quarters = np.r_[np.zeros(520), np.full(480, 0.25)]
    found |= {
        "7 of 0.995, 6 of 0.5": [of_mean(0.995)] * 7 + [of_mean(0.5)] * 6,
        "one of 0.5, 12 of 1": [of_mean(0.5), *[of_mean(1.0)] * 12],
        "one of 0.9, 12 of 1": [of_mean(0.9), *[of_mean(1.0)] * 12],
        "one of 0.995, 12 of 1": [of_mean(0.995), *[of_mean(1.0)] * 12],
        "one of 0.997, 12 of 1": [of_mean(0.997), *[of_mean(1.0)] * 12],
        "two of 0.998, 11 of 1": [*[of_mean(0.998)] * 2, *[of_mean(1.0)] * 11],
        "from 0.93 to 0.999": [of_mean(float(p)) for p in np.linspace(0.93, 0.999, 13)],
        "ten of 0, 0.12, 0.91, 0.99, 1": [*map(of_mean, (0.0, 0.0, 0.0, 0.0, 0.91, 0.99, 1.0, 1.0)), *[quarters] * 2],
        "0.9, and 1 in 100 is 0": [np.r_[np.full(990, 0.9), np.zeros(10)]] * 13,
        "halves, and 1 in 50 is 0": [np.r_[np.full(490, 0.5), np.full(490, 1.0), np.zeros(20)]] * 13,
    }
    return found | {f"one task of {p}": [of_mean(p)] for p in (0.5, 0.8, 0.9, 0.97, 0.995)}


# ------------------------------------------------------------------------------------------------------- the parts


def equal_weights(strata: Sequence[Array], at_least: int, most: int) -> Design:
    """RULER's average: equal weights, samples without end."""
    return Design.of(np.ones(len(strata)), at_least, most)


def bars(real: Sequence[Array], runs: int, at_least: int) -> dict[str, Any]:
    """Shares of the 6,500 samples and coverage on the real vectors."""
    facts: dict[str, Any] = {}
    truth = float(np.mean([s.mean() for s in real]))
    for target, bar in BARS.items():
        rng = np.random.default_rng(SEED)
        design = equal_weights(real, at_least, 500)
        tally = to_precision(design, partial(with_replacement, real, 500, rng=rng), truth, target / 100, runs)
        share = 100 * tally.mean_samples / (500 * len(real))
        note(
            f"  ±{target}: {share:.1f} % of the samples (at most {bar:g}), "
            f"coverage {tally.coverage:.2f} ± {tally.error:.2f}, {tally.mean_rounds:.1f} rounds"
        )
        facts[str(target)] = {
            "share": share,
            "coverage": tally.coverage,
            "error": tally.error,
            "rounds": tally.mean_rounds,
        }
    return facts


def coverages(
    populations: dict[str, list[Array]], targets: Sequence[float], runs: int, at_least: int
) -> dict[str, Any]:
    """Coverage of every population at every target, in percent."""
    facts: dict[str, Any] = {}
    for name, strata in populations.items():
        truth, most = float(np.mean([s.mean() for s in strata])), 500 if len(strata) > 1 else 4000
        row = {}
        for target in targets:
            rng = np.random.default_rng(SEED)
            design = equal_weights(strata, at_least, most)
            draw = partial(with_replacement, strata, most, rng=rng)
            tally = to_precision(design, draw, truth, target / 100, runs)
            row[str(target)] = [tally.coverage, 100 * tally.mean_samples / (most * len(strata))]
        facts[name] = row
        note(f"  {name:26} " + "  ".join(f"±{t}: {c:5.2f} with {s:5.1f} %" for t, (c, s) in row.items()))
    return facts


def finite(targets: Sequence[float], runs: int, at_least: int) -> dict[str, Any]:
    """57 subjects of MMLU's sizes, 14,042 questions, without replacement; the truth is the mean over all questions.

    Right answers among the next questions of a subject are drawn from the hypergeometric distribution.
    """
    from tasks.mmlu import SUBJECTS

    rng = np.random.default_rng(SEED)
    sizes = np.array(subject_sizes(len(SUBJECTS)))
    design = Design.of(sizes, at_least, int(sizes.max()), [float(n) for n in sizes])
    facts: dict[str, Any] = {}
    for name, (a, b) in {"mean 0.65": (4.0, 2.2), "mean 0.3": (6.0, 14.0), "mean 0.95": (19.0, 1.0)}.items():
        right = np.array(
            [int((rng.random(n) < p).sum()) for n, p in zip(sizes, rng.beta(a, b, len(sizes)), strict=True)]
        )
        truth, row = right.sum() / sizes.sum(), {}
        for target in targets:
            n = np.tile(design.pilot, (runs, 1)).astype(int)
            found = rng.hypergeometric(right, sizes - right, n)
            while True:
                moments = Moments.of_sums(n, found, found, found)
                now = estimate(moments, design)
                going = ~((now.half <= target / 100) | (n >= design.most).all(-1))
                if not going.any():
                    break
                more = grown(moments, design, (target / 100 / np.maximum(now.half, 1e-12)) ** 2).astype(int)
                more = np.where(going[:, None], more, n)
                left = right - found
                found = found + rng.hypergeometric(left, sizes - n - left, more - n)
                n = more
            covered = (now.low <= truth) & (truth <= now.high)
            row[str(target)] = [100 * float(covered.mean()), 100 * float(n.sum(-1).mean()) / int(sizes.sum())]
        facts[name] = row
        note(f"  subjects, {name:16} " + "  ".join(f"±{t}: {c:5.2f} with {s:5.1f} %" for t, (c, s) in row.items()))
    return facts


def subject_sizes(subjects: int) -> list[int]:
    """As skewed as MMLU's: most subjects have 100 to 300 questions, one has 1,534; 14,042 in all."""
    sizes = [100] * 10 + [int(x) for x in np.linspace(100, 346, subjects - 13)] + [783, 895, 1534]
    sizes[subjects // 2] += 14042 - sum(sizes) if sum(sizes) < 14042 else 0
    return sizes


# ------------------------------------------------------------------------------------------------------- decisions


def second_model(
    scores: Array, strata: Sequence[Array], redrawn: float, lost: float, rng: np.random.Generator
) -> Array:
    """Scores of a candidate: a share `redrawn` answered anew, then a share `lost` of all answers made wrong."""
    runs, _, most = scores.shape
    again = rng.random(scores.shape) < redrawn
    other = np.where(again, with_replacement(strata, most, runs, rng), scores)
    return np.where(rng.random(scores.shape) < lost, 0.0, other)


def decisions(
    strata: Sequence[Array], redrawn: float, difference: float, margin: float, runs: int, at_least: int
) -> dict[str, float]:
    """Shares of the verdicts, and samples per model on average; `difference` and `margin` in points."""
    rng = np.random.default_rng(SEED)
    mean = float(np.mean([s.mean() for s in strata]))
    lost, most = -difference / 100 / mean, 500
    design = equal_weights(strata, at_least, most)
    critical = critical_value(looks_of(design), 0.05)
    verdicts = {"above": 0, "below": 0, "equal": 0, "undecided": 0}
    samples, looks = 0.0, 0
    for size in chunks(runs):
        base = with_replacement(strata, most, size, rng)
        sums = Sums(second_model(base, strata, redrawn, lost, rng) - base)
        n = np.tile(design.pilot, (size, 1))
        open_ = np.ones(size, bool)
        while open_.any():
            moments = sums.moments(n)
            seen = look(moments, design, critical)
            claims = {
                "above": seen.low > 0, "below": seen.high < 0,
                "equal": (seen.low >= -margin / 100) & (seen.high <= margin / 100),
            }  # fmt: skip
            for name, claimed in claims.items():
                verdicts[name] += int((open_ & claimed).sum())
                open_ = open_ & ~claimed
            ended = (n >= design.most).all(-1)
            verdicts["undecided"] += int((open_ & ended).sum())
            open_ = open_ & ~ended
            looks += int(open_.sum())
            n = np.where(open_[:, None], grown(moments, design, np.full(size, 1 / LOOK_RATIO), 1.0), n)
        samples += float(n.sum())
    return {
        **{name: 100 * count / runs for name, count in verdicts.items()},
        "samples": 100 * samples / runs / (most * len(strata)), "looks": 1 + looks / runs,
    }  # fmt: skip


def main() -> None:
    """Run the simulations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000, help="simulated runs of every bar (default: 20000)")
    parser.add_argument("--others", type=int, default=5_000, help="of every other population (default: 5000)")
    parser.add_argument("--at-least", type=int, default=50, help="samples per task of the pilot (default: 50)")
    options = parser.parse_args()
    real = real_vectors()
    note("real score vectors")
    shares = bars(real, options.runs, options.at_least)
    note("coverage, and the share of the samples")
    covered = coverages(score_vectors(real), (0.5, 1.0, 1.5, 2.0), options.others, options.at_least)
    finite_covered = finite((0.5, 1.0, 1.5, 2.0), options.others, options.at_least)
    note("decisions, margin 1 point")
    decided = {}
    for difference in (0.0, -1.0, -3.0):
        for redrawn in (0.1, 0.3, 1.0):
            key = f"difference {difference:g}, {redrawn:.0%} redrawn"
            decided[key] = decisions(real, redrawn, difference, 1.0, options.others, options.at_least)
            note(f"  {key:32} " + ", ".join(f"{k} {v:.2f}" for k, v in decided[key].items()))
    everything = [c for row in (*covered.values(), *finite_covered.values()) for c, _ in row.values()]
    lowest = min([*everything, *(v["coverage"] for v in shares.values())])
    line = (
        ", ".join(f"±{t}: {v['share']:.1f} % of the samples, coverage {v['coverage']:.1f} %" for t, v in shares.items())
        + f"; lowest coverage of {len(everything)} populations and targets {lowest:.1f} %"
        + f"; 3 points decided with {decided['difference -3, 30% redrawn']['samples']:.0f} % of the samples,"
        + f" power {decided['difference -3, 30% redrawn']['below']:.1f} %"
    )
    emit("precision", line, bars=shares, coverage=covered, finite=finite_covered, decisions=decided, lowest=lowest)


if __name__ == "__main__":
    main()
