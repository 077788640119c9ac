"""Description of a sample: its frames, action, state and choice; pure functions of arguments and steps."""
