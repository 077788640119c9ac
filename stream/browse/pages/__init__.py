"""Pages of the browser, one module each; ``stream.browse.app`` gives them their addresses."""
