"""The method without the machines: a run in virtual time, with real training (`cluster.virtual`).

`python -m cluster.bench.lockstep CONFIG.toml` prints its figures as JSON, the held-out loss among
them; it is `python -m cluster.virtual` by its former name.
"""

from __future__ import annotations

import sys

from cluster.virtual.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
