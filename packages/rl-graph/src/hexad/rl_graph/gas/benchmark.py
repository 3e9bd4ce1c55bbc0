"""Time and memory of clustering a million states: `python -m hexad.rl_graph.gas.benchmark`.

The states are walks over a plane that lies in 32 dimensions, with noise in all of them.
"""

import argparse
import resource
import time

import numpy as np
from jaxtyping import Float

from hexad.core.terminal import print_json
from hexad.rl_graph.gas.clustering import cluster_states
from hexad.rl_graph.gas.efficiency import temporal_efficiency
from hexad.rl_graph.gas.graph import join_nodes

LENGTH = 200
"""States in a trajectory."""


def make_latents(states: int, dim: int = 32, width: float = 200.0) -> Float[np.ndarray, "states dim"]:
    """Walks of unit speed that turn slowly, on a square of side 2 width."""
    rng = np.random.default_rng(0)
    count = states // LENGTH
    heading = rng.uniform(0, 2 * np.pi, (count, 1)) + np.cumsum(rng.normal(0, 0.2, (count, LENGTH)), axis=1)
    steps = np.stack([np.cos(heading), np.sin(heading)], axis=-1)
    plane = rng.uniform(-width, width, (count, 1, 2)) + np.cumsum(steps, axis=1)
    basis, _ = np.linalg.qr(rng.normal(size=(dim, 2)))
    latents = (plane.clip(-width, width).reshape(-1, 2) @ basis.T).astype(np.float32)
    return latents + rng.normal(0, 0.2, latents.shape).astype(np.float32)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=1_000_000)
    parser.add_argument("--horizon", type=float, default=8.0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    latents = make_latents(options.states)
    ends = np.repeat(np.arange(LENGTH - 1, len(latents), LENGTH), LENGTH)
    times = [time.perf_counter()]
    temporal_efficiency(latents, ends, options.horizon)
    times.append(time.perf_counter())
    clusters = cluster_states(latents, options.horizon)
    times.append(time.perf_counter())
    weights, _ = join_nodes(clusters.nodes, options.horizon)
    times.append(time.perf_counter())
    seconds = dict(
        zip(("efficiency_s", "cluster_s", "join_s"), np.diff(times).round(2).tolist(), strict=True)
    )
    found = {"states": len(latents), "dim": latents.shape[1], "nodes": len(clusters.nodes)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found |= {"edges": weights.nnz // 2, **seconds, "peak_gib": round(peak, 2)}
    if options.json:
        print_json(found)
    else:
        print("  ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
