"""Channels: how commands reach the inside of an endpoint. One protocol, one contract suite, several ways."""
