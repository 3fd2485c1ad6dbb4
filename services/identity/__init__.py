"""Who a user id is: the one slice that keeps people's addresses. Nothing of it is re-exported."""
