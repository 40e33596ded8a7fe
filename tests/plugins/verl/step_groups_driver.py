"""Two steps of a job with dynamic sampling and oversampling; run by test_step_groups.py. Prints what verl would get."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rollout_cluster import RolloutCluster, rollout_cluster

SECONDS = 300.0


def step(cluster: RolloutCluster, number: int, size: int) -> dict[str, Any]:
    """Start the groups of a step and wait for as many; what the queue has then, and the step's metrics."""
    cluster.start(size)
    deadline = time.monotonic() + SECONDS
    while True:
        queue = cluster.queue()
        prompts = {key: tag for key, tag in queue.items() if tag.get("is_prompt")}
        if len(prompts) == size and all(tag["status"] == "finished" for tag in prompts.values()):
            break
        assert time.monotonic() < deadline, (queue, cluster.messages())
        time.sleep(0.1)
    metrics = cluster.manager.learned(list(prompts), number)
    cluster.clear(list(queue))
    return {"prompts": list(prompts), "rows": sorted(queue.keys() - prompts), "metrics": metrics}


def main(folder: Path, sections: dict[str, Any]) -> None:
    with rollout_cluster(folder, sections) as cluster:
        size = sections["train"]["batch_size"]
        steps = [step(cluster, number, size) for number in (1, 2)]
        time.sleep(1)  # the recorder writes
        print(json.dumps({"steps": steps, "journal": cluster.journal()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
