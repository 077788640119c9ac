"""Durable writes, staging folders and object stores of a conversion."""
