"""What a report shows, as data; then as HTML, JSON and for the terminal."""
