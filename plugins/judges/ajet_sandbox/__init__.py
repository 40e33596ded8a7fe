"""Runs one untrusted Python program with limits, behind walls: in Linux namespaces. Imports only the standard library.

    launcher            reads the job from the first line of its stdin, and stops when its stdin ends
      └ keeper          process 1 of new namespaces: builds the walls, watches, reaps; when it ends, all inside ends
          └ program     another user, no capabilities, limits, a system-call filter, its own cgroup

Without namespaces (``walls`` is false), the launcher is the keeper, and the program can read what its user can read.

- `launcher`: the processes, and the messages between them.
- `walls`: namespaces, and a root of read-only folders.
- `program`: everything between the fork and the program's first line.
- `calls`: the filter on system calls.
- `watch`: ends a program that exceeds a limit, as measured by `cgroup` (the kernel) or `usage` (counting in /proc).
"""
