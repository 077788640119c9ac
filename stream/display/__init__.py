"""Tables, pictures and the colours of depth, for notebooks and pages."""
