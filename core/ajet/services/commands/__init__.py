"""Commands as workflows: a program of its own for each episode.

`workflow` is the plugin, `placeholders` fills values into its command and environment, `folders` gives each episode a folder
and collects files for the judge, `process` runs the program and ends it, `sandbox` surrounds it with bubblewrap.
"""
