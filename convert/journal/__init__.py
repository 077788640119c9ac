"""The record of finished work, on a disk or in an object store, that lets a conversion go on."""
