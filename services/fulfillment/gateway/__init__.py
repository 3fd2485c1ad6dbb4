"""The outside world of fulfillment, one vendor a file. Only the slice's card wires them."""
