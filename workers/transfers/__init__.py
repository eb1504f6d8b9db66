"""Transfer tools: their command lines, and pure parsers of what they print."""
