"""The cost of changing the context setting: a sweep's wall time over the time in which the engine answers.

Runs the demo's baseline and elementwise models under 12 settings of base x factor, as `gatedeval sweep` does. Models of
one million parameters show the overhead more clearly than large ones. "Inside generate" is the time between asking the
engine for the next answer and getting it, without the time that producing its prompts took. The ratio excludes the
engines' starts; their number is printed and must equal the number of models.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from common import ROOT, emit, note

_END = object()


class Clock:
    """Seconds that engines spent starting, answering, and changing the context setting (`switching`)."""

    def __init__(self) -> None:
        self.starting = self.answering = self.switching = 0.0
        self.switches = 0

    def install(self) -> None:
        """Replace three methods of `Engine` by timed ones, in this process only."""
        from harness.engine.engine import Engine

        start, switch, answer = Engine.__init__, Engine.set_context, Engine.answer
        clock = self

        def timed_start(engine: Any, *args: Any, **kwargs: Any) -> None:
            before, inside = time.perf_counter(), clock.switching
            start(engine, *args, **kwargs)
            clock.starting += time.perf_counter() - before - (clock.switching - inside)

        def timed_switch(engine: Any, *args: Any, **kwargs: Any) -> None:
            before = time.perf_counter()
            switch(engine, *args, **kwargs)
            clock.switching += time.perf_counter() - before
            clock.switches += 1

        def timed_answer(engine: Any, requests: Iterable[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
            pulling = 0.0

            def pulled() -> Iterator[Any]:
                nonlocal pulling
                remaining = iter(requests)
                while True:
                    before = time.perf_counter()
                    item = next(remaining, _END)  # None means "not ready yet"
                    pulling += time.perf_counter() - before
                    if item is _END:
                        return
                    yield item

            answers = answer(engine, pulled(), *args, **kwargs)
            while True:
                before, so_far = time.perf_counter(), pulling
                item = next(answers, _END)
                clock.answering += time.perf_counter() - before - (pulling - so_far)
                if item is _END:
                    return
                yield item

        Engine.__init__, Engine.set_context, Engine.answer = timed_start, timed_switch, timed_answer  # type: ignore[method-assign]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", help="[LABEL=]PATH (default: two of the demo's)")
    parser.add_argument("--rope-theta", default="1e4,5e4,1e6,1e7")
    parser.add_argument("--yarn-factor", default="1,2,4")
    parser.add_argument("--original", type=int, default=1024)
    parser.add_argument("--lengths", default="1024,2048")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--task", default="niah_single_1")
    args = parser.parse_args()

    from harness.engine.engine import Engine
    from harness.run import sweep
    from harness.run.plan import build
    from harness.run.progress import Progress
    from harness.run.runner import run

    demo = ROOT / "tasks" / "demo" / "models"
    models = args.models or [f"{arm}={demo / arm / 'long'}" for arm in ("baseline", "elementwise")]
    clock = Clock()
    clock.install()
    begin = time.perf_counter()
    config = sweep.build(
        models,
        bases=sweep.parse_list(args.rope_theta, "--rope-theta", sweep.a_base),
        factors=sweep.parse_list(args.yarn_factor, "--yarn-factor", sweep.a_factor),
        lengths=sweep.parse_list(args.lengths, "--lengths", sweep.a_length),
        tasks=[args.task],
        samples=args.samples,
        original=args.original,
        native=False,
        dtype="float32",
        overrides=["engine.enforce_eager=true"],
    )
    plan = build(config)
    plan.check()
    with tempfile.TemporaryDirectory() as folder:
        state, tally = run(plan, Path(folder) / "run", progress=Progress(plan, quiet=True))
    wall = time.perf_counter() - begin
    ratio = (wall - clock.starting) / clock.answering
    note(f"{wall:.1f} s, of which {clock.starting:.1f} s engine starts, {clock.answering:.1f} s inside generate,")
    note(f"{clock.switching:.2f} s in {clock.switches} changes of setting")
    each = 1000 * clock.switching / max(1, clock.switches)
    emit(
        "sweep",
        f"{len(config.contexts)} settings x {len(models)} models, {tally.asked} samples ({state}):"
        f" {Engine.starts} engine starts; wall without them {ratio:.3f} x the time inside generate (asked for: 1.15);"
        f" {each:.1f} ms a change of setting",
        ratio=ratio,
        wall=wall,
        starting=clock.starting,
        answering=clock.answering,
        switching=clock.switching,
        switches=clock.switches,
        starts=Engine.starts,
        settings=len(config.contexts),
        models=len(models),
        samples=tally.asked,
    )


if __name__ == "__main__":
    main()
