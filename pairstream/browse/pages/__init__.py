"""Pages of the browser, one module each; ``pairstream.browse.app`` gives them their addresses."""
