"""What happens when one bit of a finished run folder changes: is it found when the run is loaded?

    python benchmarks/byte_flips.py RUN [--data rows.csv] [--flips 100]

In a copy of RUN one random bit of a random byte is turned over, `--flips` times in each file, and the run is loaded and
asked for the rows of --data, or of the demo. detected: a DataError. harmless: loaded, and the same answers. WRONG: other
answers, or any other error. Exits with 1 if there is one.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

import zoo
from trainers.errors import DataError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", help="None: the recipe's demo, for a run of it")
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, total = np.random.default_rng(arguments.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(arguments.run, Path(place) / "run"))
        right = zoo.load(folder).predict(arguments.data)
        for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.stat().st_size):
            found = Counter(flipped(path, folder, arguments.data, right, rng) for _ in range(arguments.flips))
            print(path.relative_to(folder), dict(found), flush=True)
            total += found
    print("all files", dict(total))
    sys.exit(total["WRONG"] > 0)


def flipped(path: Path, folder: Path, data: str | None, right: pd.DataFrame, rng: np.random.Generator) -> str:
    """Turn over one bit of the file, see what loading and predicting make of it, and turn it back."""
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
    path.write_bytes(changed)
    try:
        return "harmless" if zoo.load(folder).predict(data).equals(right) else "WRONG"
    except DataError:
        return "detected"
    except Exception as error:
        print(path.name, type(error).__name__, error)
        return "WRONG"
    finally:
        path.write_bytes(whole)


if __name__ == "__main__":
    main()
