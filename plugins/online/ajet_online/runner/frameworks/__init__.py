"""One file for each framework: how its tools are intercepted in shadow runs, and which calls of its agents are repeated."""
