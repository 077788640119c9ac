"""Local and remote files, memory, errors and command-line parts, on which every other package stands."""
