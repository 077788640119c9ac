"""Actions and states as policies take them: rotations, and values relative to the present."""
