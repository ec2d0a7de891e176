"""Checks an existing configuration, and takes a request from one."""
