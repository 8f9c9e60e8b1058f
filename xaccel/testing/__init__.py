"""What tests of adapters are made of: ranks, a NumPy backend, the conformance cases."""
