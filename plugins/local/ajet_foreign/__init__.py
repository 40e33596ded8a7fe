"""Another program in which a backbone trains: its versions and platforms. The backbones `trinity` and `verl` use it."""
