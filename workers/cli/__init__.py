"""Commands of the command line that touch machines; found by the entry points `labctl.commands`."""
