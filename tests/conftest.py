"""What all tests need."""

import signal

# A shell starts background jobs deaf to Ctrl-C, and so would be whatever is started
# here; a handler of our own is not inherited, children get the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
