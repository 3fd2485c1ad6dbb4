"""Every statement of the slice: the inbox's, under the door's own bounds, and what operators do with deliveries."""
