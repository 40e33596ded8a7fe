"""A folder in which a newcomer trains an agent, `ajet new`; and the package of a plugin, `ajet plugin new`.

`templates/` has what is written, with ``«name»`` in place of what differs. `project.py` fills it in, and `found.py` finds out what an
agent that is already there (``--from``) needs around it. `skeletons/` is the same for plugins. Importing this package imports
none of this.
"""
