"""Write right.yaml and wrong.yaml for `ajet check --answers`: an answer for each task, to test a judge without a model.

python scripted_answers.py tasks.jsonl [FIELD]

FIELD is where a task has its right answer; without it, `answer`.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    file, field = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "answer"
    tasks = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    without = sum(field not in task for task in tasks)
    if without:
        sys.exit(
            f"{file}: {without} of {len(tasks)} tasks have no field {field}; name the one with the right answer."
        )
    right = [{"when": task["query"], "say": str(task[field])} for task in tasks]
    wrong = [{"when": task["query"], "say": "I cannot say."} for task in tasks]
    for name, rules in (("right.yaml", right), ("wrong.yaml", wrong)):
        # JSON is YAML, and needs no package here.
        file.with_name(name).write_text(json.dumps(rules, indent=1, ensure_ascii=False), encoding="utf-8")
        print(f"wrote {file.with_name(name)}")


main()
