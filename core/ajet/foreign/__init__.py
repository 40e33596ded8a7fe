"""What backbones share that train in another program, such as verl: the versions that it needs, and platforms for it."""
