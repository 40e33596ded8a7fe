"""What capture changes in this process and its children while a run lasts.

`install` switches all of it on: `threads` and `fork` carry the episode along, `uncaptured` notes connections that no capture
accounts for, `importing` refuses calls made while user code is imported, `garbage` keeps full collections rare.
"""
