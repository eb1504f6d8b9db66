"""The words of labctl as frozen values. No input, no output, no clock, no library but the standard one."""
