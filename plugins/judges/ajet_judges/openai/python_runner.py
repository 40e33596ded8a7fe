"""Runs in the sandbox: calls the grader's `grade` on what stdin holds, and writes its result behind a token. What the grader prints
goes to stderr."""

import json
import sys

given = json.load(sys.stdin)
out, sys.stdout = sys.stdout, sys.stderr


def end(kind: str, value: object) -> None:
    out.write(f"\n{given['token']}{json.dumps([kind, value])}\n")
    out.flush()


try:
    import grader  # type: ignore[import-not-found]

    result = grader.grade(given["sample"], given["item"])
except ImportError as error:
    end("missing", str(error))
except Exception as error:
    end("failed", f"{type(error).__name__}: {error}"[:500])
else:
    try:
        end("score", float(result))
    except (TypeError, ValueError, OverflowError):
        end("failed", f"grade returned a {type(result).__name__}")
