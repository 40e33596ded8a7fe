"""What capture changes in this process and its children while a run lasts.

`install` switches all of it on, and lets threads carry the episode along, as `fork` does for children; `uncaptured` notes
connections that no capture accounts for, and refuses calls made while user code is imported; `garbage` keeps full collections rare.
"""
