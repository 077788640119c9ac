"""What every other package may use: errors, arguments, progress, configurations, the machine."""
