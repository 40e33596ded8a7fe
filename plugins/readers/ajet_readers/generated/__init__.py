"""New tasks written by a model, from documents and from a few examples.

Every answer of the model is stored under a key over the whole request, and the tasks depend only on these answers and
the order of the documents. So a run that was killed continues where it stopped, produces the same tasks as an
uninterrupted run and pays for no answer twice. A changed document costs requests for its changed chunks only.
"""

from __future__ import annotations

from collections.abc import Iterator

from ajet import Task
from ajet_readers.generated.settings import GeneratedSettings


class Generated(GeneratedSettings):
    """Questions with answers that a model writes: about documents, in the style of examples, or both.

    Answers are stored in ``cache``, so no request is paid for twice. With ``part`` and ``hold_out``, all tasks of a
    chunk are in the same part, so nothing from training leaks into validation.
    """

    name = "generated"

    def source(self) -> Iterator[Task]:
        """Generate all tasks, or read them from the cache. Raises AjetError if the endpoint fails, and ConfigError
        for documents or examples that cannot be read."""
        from ajet_readers.generated.work import generate  # too slow to import for `ajet --help`

        yield from generate(self)

    def group_of(self, task: Task) -> str:
        """Tasks of one chunk belong to one part."""
        return str(task.metadata["chunk"] or task.id)
