"""Files near and far, memory, errors and command lines: what every other room stands on."""
