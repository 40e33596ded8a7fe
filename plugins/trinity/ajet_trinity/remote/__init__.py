"""What runs in Trinity's processes. These modules import Trinity; nothing else in this package does."""
