"""What verl finds under our names in each of its processes (entry point group ``verl.plugins``): imports `credit`."""
