"""The interface of testbeds, and the record of a cluster's testbeds."""
