"""What a testbed must be able to do, and which testbeds a cluster was made on."""
