"""What the command line and the workers call: submit, advance, claim, accept, pause, resume, cancel, recover."""
