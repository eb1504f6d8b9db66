package main

// guests are what VMs boot.
type guests struct{ center *center }

func newGuests(c *center) *guests {
	return &guests{center: c}
}
