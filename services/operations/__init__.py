"""The commands of whoever runs rowclaim. No slice: it knows cards, not what is on them."""
