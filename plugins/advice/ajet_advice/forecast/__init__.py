"""`ajet forecast`: whether a job will learn, from a few dozen episodes; what would stop it; what it would cost."""
