"""The judge of all recipes: what is in the file that the agent has left."""

from ajet import Task, WorkflowOutput


def judge(task: Task, output: WorkflowOutput) -> float:
    """1 if answer.txt has the answer."""
    file = output.files.get("answer.txt")
    return float(file is not None and file.read_text(errors="replace").strip() == task.metadata["answer"])
