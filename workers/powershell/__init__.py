"""PowerShell as data: scripts in files of their own, one JSON document in, one JSON document out."""
