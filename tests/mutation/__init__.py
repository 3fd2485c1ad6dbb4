"""One conjunct, one CHECK, one unique, one trigger, one condition of the guard removed at a time: a test must die."""
