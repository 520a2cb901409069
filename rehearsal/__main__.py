"""`python -m rehearsal [SCENARIO ...]`: rehearses launches on this machine, and ends with a short report."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from .hosts import enter_own_network, missing


def main() -> int:
    asks = {"-h", "--help", "--list"} & set(sys.argv[1:])
    if not asks and (problem := missing()):
        print(problem, file=sys.stderr)
        return 3
    from .scenarios import SCENARIOS

    described = "\n".join(f"  {name:<14} {(each.__doc__ or '').splitlines()[0]}" for name, each in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="make rehearse",
        description=f"Rehearse `skytrain launch` on this machine, without AWS. Needs root.\n\nscenarios:\n{described}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all, in this order")
    parser.add_argument("--seed", type=int, default=0, help="of the interruptions' order and moments")
    parser.add_argument("--interruptions", type=int, default=12, metavar="N", help="only the first N of the order")
    parser.add_argument("--log", type=Path, help="write everything that is printed to this file too")
    parser.add_argument("--list", action="store_true", help="print the names of the scenarios")
    given = parser.parse_args()
    unknown = [name for name in given.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    if given.list:
        print("\n".join(SCENARIOS))
        return 0
    enter_own_network()
    return rehearse(given.scenarios or list(SCENARIOS), given.seed, given.log, given.interruptions)


def rehearse(names: list[str], seed: int, log: Path | None = None, interruptions: int = 12) -> int:
    """Run the scenarios, one after another; a failure does not stop the others."""
    import torch

    from .phases import table
    from .scenarios import SCENARIOS
    from .world import RehearsalFailed, world

    began, results = time.monotonic(), dict[str, str]()
    if log:
        log.write_text("")

    def say(text: str) -> None:
        line = f"{time.monotonic() - began:7.1f} {text}"
        print(line, flush=True)
        if log:
            with log.open("a") as file:
                file.write(line + "\n")

    load = os.getloadavg()[0]
    say(
        f"{platform.machine()}, {os.cpu_count()} cores (load {load:.1f} before), torch {torch.__version__}, seed {seed}"
    )
    with world(seed, say) as here:
        here.interruptions = interruptions
        say("moto, SeaweedFS and a bridge for hosts are up; the data is prepared")
        for name in names:
            say(f"{name}: {(SCENARIOS[name].__doc__ or '').splitlines()[0]}")
            started = time.monotonic()
            try:
                SCENARIOS[name](here)
                results[name] = f"passed in {time.monotonic() - started:.0f} s"
            except (RehearsalFailed, RuntimeError) as error:
                results[name] = f"FAILED: {str(error).splitlines()[0]}"
                say(f"  FAILED: {error}")
                here.clean_up()
    say("report")
    for title, rows in here.measured.items():
        for line in table(title, rows):
            say(f"  {line}")
    for name, result in results.items():
        say(f"  {name:<14} {result}")
    return int(any("FAILED" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
