"""Robot recordings: ROS 1 bags, ROS 2 bags and MCAP files, read with the library rosbags."""
