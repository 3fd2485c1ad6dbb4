"""The services of rowclaim: the kernel, the vendors' adapters, and one slice a capability."""
