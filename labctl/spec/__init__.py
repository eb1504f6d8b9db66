"""Lab and campaign files to model values; every mistake is told with file, line, column and key."""
