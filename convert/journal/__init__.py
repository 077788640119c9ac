"""The record of finished work, on a disk or in an object store, from which an interrupted conversion continues."""
