"""False positives of comparisons between arms, by simulation: seeds differ, recipes do not.

Two arms of 2 to 5 checkpoints of one recipe answer the same samples of 13 tasks. Every checkpoint has its own skill (a
normal effect of its seed on the log-odds of a right answer, and a smaller one per task), every sample its own
difficulty. So a difference of the arms' means is chance, and a comparison that claims one is wrong. Counted are, at
level 5%:

- `files`: the test by sample of these checkpoints' averaged scores, and of one checkpoint of each (`single`), which are
  what a comparison without arms tests. They are right about the files, and wrong about the recipes.
- `recipe`: what decides with `infer: recipe`, for one comparison and for one among ten (`family`, Holm's first step).
- `welch`, `permutation`: both tests of checkpoints; `bootstrap`: the hierarchical interval leaves 0 out.

Further rows: seeds of one arm spread twice as much, and seeds that sometimes fail (a mixture, where Welch's assumption
does not hold).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from common import emit, note

from harness import stats

TASKS, LEVEL = 13, 0.05
Draw = Callable[[np.random.Generator, int], np.ndarray]


def normal(scale: float) -> Draw:
    """Effects of seeds on the log-odds: normal, with this standard deviation."""
    return lambda rng, k: rng.normal(0, scale, k)


def sometimes_fails(rng: np.random.Generator, k: int) -> np.ndarray:
    """One seed in five loses 1.2 in log-odds (about 20 points)."""
    return rng.normal(0, 0.1, k) - 1.2 * (rng.random(k) < 0.2)


def arm(rng: np.random.Generator, seeds: np.ndarray, difficulty: list[np.ndarray], task: float) -> list[np.ndarray]:
    """Answers of one arm, 0 or 1: per task (checkpoints, samples)."""
    found = []
    for sample in difficulty:
        logits = seeds[:, None] + rng.normal(0, task, (seeds.size, 1)) + sample
        found.append((rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float64))
    return found


def verdicts(a: list[np.ndarray], b: list[np.ndarray]) -> dict[str, bool]:
    """Which comparisons claim a difference."""
    means = [np.mean([task.mean(axis=1) for task in side], axis=0) for side in (a, b)]
    files = stats.paired_differences([t.mean(axis=0) for t in a], [t.mean(axis=0) for t in b])
    single = stats.paired_differences([t[0] for t in a], [t[0] for t in b])
    wide = stats.hierarchical_interval(a, b)
    return {
        # The test of averages over tasks, with fewer resamples: its p-value is only compared with 5%.
        "single": stats.permutation_test(single, resamples=1000) < LEVEL,
        "files": stats.permutation_test(files, resamples=1000) < LEVEL,
        "recipe": stats.recipe_p(*means, LEVEL)[0] < LEVEL,
        "family": stats.recipe_p(*means, LEVEL / 10)[0] < LEVEL / 10,
        "welch": stats.welch(*means).p < LEVEL,
        "permutation": stats.checkpoint_permutation(*means) < LEVEL,
        "bootstrap": not wide.low <= 0 <= wide.high,
    }


def rates(sizes: tuple[int, int], draws: tuple[Draw, Draw], runs: int, samples: int, seed: int) -> dict[str, float]:
    """The share of simulated comparisons that claim a difference, by kind."""
    rng = np.random.default_rng(seed)
    counts: dict[str, int] = {}
    for _ in range(runs):
        hard = [rng.normal(1.5, 1.5, samples) for _ in range(TASKS)]
        a, b = (arm(rng, draw(rng, k), hard, 0.1) for k, draw in zip(sizes, draws, strict=True))
        for kind, claimed in verdicts(a, b).items():
            counts[kind] = counts.get(kind, 0) + int(claimed)
    return {kind: count / runs for kind, count in counts.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000, help="simulated comparisons per row (default: 4000)")
    parser.add_argument("--samples", type=int, default=100, help="samples per task (default: 100)")
    parser.add_argument("--spread", type=float, default=0.15, help="of seeds, in log-odds; 0.15 is about 2 points")
    args = parser.parse_args()
    same = normal(args.spread)
    rows: list[tuple[str, tuple[int, int], tuple[Draw, Draw]]] = [
        *(
            (f"{a} against {b}", (a, b), (same, same))
            for a, b in ((2, 2), (3, 3), (4, 4), (5, 5), (2, 3), (3, 5), (2, 5), (2, 4), (3, 4), (4, 5))
        ),
        *((f"{k} against {k}, one arm twice as spread", (k, k), (same, normal(2 * args.spread))) for k in (2, 3, 5)),
        *((f"{k} against {k}, one seed in five fails", (k, k), (sometimes_fails, sometimes_fails)) for k in (2, 3, 5)),
    ]
    start, found = time.perf_counter(), {}
    for i, (name, sizes, draws) in enumerate(rows):
        found[name] = rates(sizes, draws, args.runs, args.samples, seed=i)
        shown = ", ".join(f"{kind} {100 * rate:.1f}%" for kind, rate in found[name].items())
        note(f"{name}: {shown} ({time.perf_counter() - start:.0f} s)")
    fair = [name for name, _, draws in rows if draws == (same, same)]
    recipe, files = ([found[name][kind] for name in fair] for kind in ("recipe", "files"))
    emit(
        "arms",
        f"false positives at 5% where seeds differ and recipes do not, 2 to 5 checkpoints an arm: infer: recipe "
        f"{100 * min(recipe):.1f} to {100 * max(recipe):.1f}%, by sample {100 * min(files):.0f} to "
        f"{100 * max(files):.0f}%",
        runs=args.runs,
        samples=args.samples,
        rates=found,
    )


if __name__ == "__main__":
    main()
