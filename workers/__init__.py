"""The execution side: touches machines, holds no opinions."""
