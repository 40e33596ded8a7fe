"""Runs one untrusted Python program with limits, behind walls. Imports the standard library alone.

    launcher            gets the job as the first line of its stdin; the end of its stdin means: stop
      └ keeper          process 1 of new namespaces: builds the walls, watches, reaps; when it ends, all in there ends
          └ program     another user, no capabilities, limits, a system-call filter, a cgroup of its own

Without namespaces (``walls`` false) the launcher is the keeper, and what its user may read stays open to the program.

- `launcher`: the processes, and what they tell each other.
- `walls`: namespaces, and a root of read-only folders.
- `program`: what happens between the fork and the program's first line.
- `calls`: the filter on system calls.
- `watch`: ends a program that uses too much, as counted by `cgroup` (the kernel counts) or `usage` (we count).
"""
