"""``python -m benchmarks``: the eager engine beside PyTorch, as a table of ratios."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import eager


def main() -> int:
    """Run the measurements and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    rows = eager.measure(rounds=15 if options.quick else 60)
    eager.show(rows)
    if options.json:
        options.json.write_text(json.dumps([row.__dict__ for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
