"""The program for LeRobot's environment is no test module of this one."""

collect_ignore = ["lerobot_training.py"]
