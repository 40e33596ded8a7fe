"""One file for each framework whose tools are intercepted in shadow runs."""
