"""From episodes of RLDS or LeRobot to shards of frames and an index: plain functions, no Beam in them."""

from convert.extras import check_command

__version__ = "0.1.0"

check_command("convert")
