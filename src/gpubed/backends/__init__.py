"""Testbeds: one folder each. `registry` finds them; nothing else names one."""
