"""Foundation of all other packages: errors, arguments, progress, configurations, the machine."""
