"""Print what the containers of the example wrote: python3 show_results.py results"""

import json
import sys
from pathlib import Path

results = Path(sys.argv[1]).resolve()
parts = sorted(results.glob("*/accuracy.json"), key=lambda path: int(path.parent.name))
if not parts:
    sys.exit(f"Error: no */accuracy.json in {results}")
best = None
for path in parts:
    one = json.loads(path.read_text(encoding="utf-8"))
    chosen = one["best"]
    print(f"container {one['container']}: accuracy {one['accuracy']:.1%} with {chosen['hidden']} units,", end=" ")
    print(f"rate {chosen['rate']:g} (best of {len(one['tried'])})")
    if best is None or chosen["validation"] > best[0]:
        best = chosen["validation"], path.parent
print(f"plot of the best: {best[1] / 'learning_curve.png'}")
